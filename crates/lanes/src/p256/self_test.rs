//! Known answers: small multiples of the generator and the P-256 examples of RFC 6979 §A.2.5.

use super::batch::Group;
use super::{
    BatchError, EXCEPTIONAL_SCALAR, Ifma, LANES, PairSlot, SecretScalar, ecdh, nonce_pairs_in, public_keys_in, scalar,
    sign, table,
};

type Number = [u64; 4];

/// k and x(k·G), most significant word first, as the standards print them.
const MULTIPLES: [(Number, Number); LANES] = [
    ([0, 0, 0, 1], X_1),
    ([0, 0, 0, 2], X_2),
    ([0, 0, 0, 3], X_3),
    ([N_HIGH[0], N_HIGH[1], N_HIGH[2], 0xf3b9_cac2_fc63_2550], X_1),
    ([N_HIGH[0], N_HIGH[1], N_HIGH[2], 0xf3b9_cac2_fc63_254f], X_2),
    ([N_HIGH[0], N_HIGH[1], N_HIGH[2], 0xf3b9_cac2_fc63_254e], X_3),
    (SAMPLE.k, SAMPLE.r),
    (TEST.k, TEST.r),
];
const N_HIGH: [u64; 3] = [0xffff_ffff_0000_0000, 0xffff_ffff_ffff_ffff, 0xbce6_faad_a717_9e84];
const X_1: Number = [0x6b17_d1f2_e12c_4247, 0xf8bc_e6e5_63a4_40f2, 0x7703_7d81_2deb_33a0, 0xf4a1_3945_d898_c296];
const X_2: Number = [0x7cf2_7b18_8d03_4f7e, 0x8a52_3803_04b5_1ac3, 0xc089_69e2_77f2_1b35, 0xa60b_48fc_4766_9978];
const X_3: Number = [0x5ecb_e4d1_a633_0a44, 0xc8f7_ef95_1d4b_f165, 0xe6c6_b721_efad_a985, 0xfb41_661b_c6e7_fd6c];

struct Example {
    digest: Number,
    k: Number,
    r: Number,
    s: Number,
}

const PRIVATE_KEY: Number =
    [0xc9af_a9d8_45ba_7516, 0x6b5c_2157_67b1_d693, 0x4e50_c3db_36e8_9b12, 0x7b8a_622b_120f_6721];
const PUBLIC_KEY: [Number; 2] = [
    [0x60fe_d4ba_255a_9d31, 0xc961_eb74_c635_6d68, 0xc049_b892_3b61_fa6c, 0xe669_622e_60f2_9fb6],
    [0x7903_fe10_08b8_bc99, 0xa41a_e9e9_5628_bc64, 0xf2f1_b20c_2d7e_9f51, 0x77a3_c294_d446_2299],
];
/// SHA-256 of "sample".
const SAMPLE: Example = Example {
    digest: [0xaf2b_dbe1_aa9b_6ec1, 0xe2ad_e1d6_94f4_1fc7, 0x1a83_1d02_68e9_8915, 0x6211_3d8a_62ad_d1bf],
    k: [0xa6e3_c57d_d01a_be90, 0x0865_3839_8355_dd4c, 0x3b17_aa87_3382_b0f2, 0x4d61_2949_3d8a_ad60],
    r: [0xefd4_8b2a_acb6_a8fd, 0x1140_dd9c_d45e_81d6, 0x9d2c_877b_56aa_f991, 0xc34d_0ea8_4eaf_3716],
    s: [0xf7cb_1c94_2d65_7c41, 0xd436_c7a1_b6e2_9f65, 0xf3e9_00db_b9af_f406, 0x4dc4_ab2f_843a_cda8],
};
/// SHA-256 of "test".
const TEST: Example = Example {
    digest: [0x9f86_d081_884c_7d65, 0x9a2f_eaa0_c55a_d015, 0xa3bf_4f1b_2b0b_822c, 0xd15d_6c15_b0f0_0a08],
    k: [0xd16b_6ae8_27f1_7175, 0xe040_871a_1c7e_c350, 0x0192_c4c9_2677_336e, 0xc253_7aca_ee00_08e0],
    r: [0xf1ab_b023_5183_51cd, 0x71d8_8156_7b1e_a663, 0xed3e_fcf6_c513_2b35, 0x4f28_d3b0_b7d3_8367],
    s: [0x019f_4113_742a_2b14, 0xbd25_926b_49c6_4915, 0x5f26_7e60_d381_4b4c, 0x0cc8_4250_e46f_0083],
};

struct Agreement {
    scalars: [Number; 2],
    points: [[Number; 2]; 2],
    secret: Number,
}

const AGREEMENT: Agreement = Agreement {
    scalars: [
        [0xc88f_01f5_10d9_ac3f, 0x70a2_92da_a231_6de5, 0x44e9_aab8_afe8_4049, 0xc62a_9c57_862d_1433],
        [0xc6ef_9c5d_78ae_012a, 0x0111_64ac_b397_ce20, 0x8868_5d8f_06bf_9be0, 0xb283_ab46_476b_ee53],
    ],
    points: [
        [
            [0xdad0_b653_9422_1cf9, 0xb051_e1fe_ca57_87d0, 0x98df_e637_fc90_b9ef, 0x945d_0c37_7258_1180],
            [0x5271_a046_1cdb_8252, 0xd61f_1c45_6fa3_e59a, 0xb1f4_5b33_accf_5f58, 0x389e_0577_b899_0bb3],
        ],
        [
            [0xd12d_fb52_89c8_d4f8, 0x1208_b702_7039_8c34, 0x2296_970a_0bcc_b74c, 0x736f_c755_4494_bf63],
            [0x56fb_f3ca_366c_c23e, 0x8157_854c_13c5_8d6a, 0xac23_f046_ada3_0f83, 0x53e7_4f33_0398_72ab],
        ],
    ],
    secret: [0xd684_0f6b_42f6_edaf, 0xd131_16e0_e125_6520, 0x2fef_8e9e_ce7d_ce03, 0x8124_64d0_4b94_42de],
};

fn bytes(number: &Number) -> [u8; 32] {
    scalar::to_bytes(&[number[3], number[2], number[1], number[0]])
}

/// Known answers in every lane, the refusal of [`EXCEPTIONAL_SCALAR`], and the table's checksum; some 300 µs. Nothing
/// here may be used if it is false.
#[must_use]
pub fn self_test(ifma: Ifma) -> bool {
    // Every rotation is computed, whatever came of the one before; `&` and not `&&`.
    let lanes = (0..LANES).fold(true, |good, turn| good & pairs_are_known(ifma, turn) & keys_are_known(ifma, turn));
    table::checksum() & lanes & exceptional_is_refused(ifma) & secrets_are_known(ifma)
}

fn pairs_are_known(ifma: Ifma, turn: usize) -> bool {
    let answer = |lane: usize| &MULTIPLES[(lane + turn) % LANES];
    let scalars: [_; LANES] = core::array::from_fn(|lane| bytes(&answer(lane).0));
    let mut slots = [PairSlot::EMPTY; LANES];
    if nonce_pairs_in(ifma, &mut scalars.clone(), &mut [Group::ZERO], &mut slots).is_err() {
        return false;
    }
    let Some(key) = SecretScalar::new(&bytes(&PRIVATE_KEY)) else { return false };
    slots.iter_mut().enumerate().fold(true, |good, (lane, slot)| {
        let Some(pair) = slot.take() else { return false };
        let is_r = scalar::to_bytes(&pair.r) == bytes(&answer(lane).1);
        let is_inverse = scalar::multiply(&scalar::from_bytes(&scalars[lane]), &pair.k_inverse) == [1, 0, 0, 0];
        let example = [&SAMPLE, &TEST].into_iter().find(|example| example.k == answer(lane).0);
        let is_signature = example.is_none_or(|example| {
            sign(&key, &bytes(&example.digest), pair)
                .is_some_and(|signature| signature[..32] == bytes(&example.r) && signature[32..] == bytes(&example.s))
        });
        good & is_r & is_inverse & is_signature
    })
}

/// The example's key in one lane, multiples of the generator in the others.
fn keys_are_known(ifma: Ifma, turn: usize) -> bool {
    let mut scalars: [_; LANES] = core::array::from_fn(|lane| bytes(&MULTIPLES[(lane + turn) % LANES].0));
    scalars[turn] = bytes(&PRIVATE_KEY);
    let mut keys = [[0; 65]; LANES];
    let made = public_keys_in(ifma, &scalars, &mut [Group::ZERO], &mut keys).is_ok();
    keys.iter().enumerate().fold(made, |good, (lane, key)| {
        let x = if lane == turn { &PUBLIC_KEY[0] } else { &MULTIPLES[(lane + turn) % LANES].1 };
        let is_y = lane != turn || key[33..] == bytes(&PUBLIC_KEY[1]);
        good & (key[0] == 4) & (key[1..33] == bytes(x)) & is_y
    })
}

fn exceptional_is_refused(ifma: Ifma) -> bool {
    let mut scalars = [EXCEPTIONAL_SCALAR; LANES];
    let mut slots = [PairSlot::EMPTY; LANES];
    nonce_pairs_in(ifma, &mut scalars, &mut [Group::ZERO], &mut slots) == Err(BatchError::Exceptional)
}

/// RFC 5903 §8.1 in even lanes, from both sides, and in the odd ones a point that is not on the curve.
fn secrets_are_known(ifma: Ifma) -> bool {
    let scalars: [_; LANES] = core::array::from_fn(|lane| bytes(&AGREEMENT.scalars[lane / 2 % 2]));
    let points: [_; LANES] = core::array::from_fn(|lane| {
        let [x, y] = &AGREEMENT.points[1 - lane / 2 % 2];
        let mut point = [4; 65];
        point[1..33].copy_from_slice(&bytes(x));
        point[33..].copy_from_slice(&bytes(y));
        point[64] ^= (lane % 2) as u8;
        point
    });
    let mut secrets = [[0; 32]; LANES];
    let refused = ecdh::agree(ifma, &scalars, &points, &mut ecdh::Multiples::ZERO.clone(), &mut secrets);
    let expected = [bytes(&AGREEMENT.secret), [0; 32]];
    secrets
        .iter()
        .enumerate()
        .fold(refused == 0b1010_1010, |good, (lane, secret)| good & (*secret == expected[lane % 2]))
}
