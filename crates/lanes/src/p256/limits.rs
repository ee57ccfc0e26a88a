//! Limits of a batch, and the errors for what is not within them.

/// Scalars of a batch come in multiples of this.
pub const LANES: usize = 8;
/// The most scalars that one batch may hold; it keeps a core of 4 GHz busy for some 160 µs.
pub const BATCH_MAX: usize = 256;

/// The one odd scalar whose last addition is a doubling, which the formulas cannot do; n less this is the other one.
/// Chosen by chance with probability 2^-255, by a caller easily: a batch that holds it is refused.
pub const EXCEPTIONAL_SCALAR: [u8; 32] = [
    0xe0, 0x00, 0x00, 0x00, 0xff, 0xff, 0xff, 0xff, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x43, 0x19, 0x05,
    0x52, 0x58, 0xe8, 0x61, 0x7b, 0x0c, 0x46, 0x35, 0x3d, 0x03, 0x9c, 0xda, 0xaf,
];

/// The reason why a batch was not made. Nothing of it may be used, and its scalars are gone: draw others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchError {
    /// The caller's fault: not a multiple of [`LANES`] up to [`BATCH_MAX`], or as many outputs as scalars.
    Size,
    /// The caller's fault: a scalar was not in [1, n − 1]; see [`is_scalar`](super::is_scalar).
    NotAScalar,
    /// A scalar was [`EXCEPTIONAL_SCALAR`] or its negative, or a point had an x of 0 mod n.
    Exceptional,
}

impl core::fmt::Display for BatchError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            BatchError::Size => "a batch must be a multiple of 8 scalars, at most 256, with an output for each",
            BatchError::NotAScalar => "a scalar of the batch is 0 or not below the order of P-256; draw it again",
            BatchError::Exceptional => "a scalar of the batch is one the formulas cannot use; draw all of them again",
        })
    }
}

impl core::error::Error for BatchError {}
