//! The promises of the RSA lanes, against aws-lc and plain big numbers.

use super::*;

#[test]
fn the_known_answers_come_out_of_all_lanes() {
    let Some(ifma) = Ifma::detect() else { return println!("no IFMA here, nothing to test") };
    assert!(self_test(ifma, &mut Scratch::new()));
}
