//! Parts of AWS-LC that its safe Rust crate does not offer: the bare RSA private operation, ECDSA over a finished
//! digest of any length, any encoding of a private key, X25519 on bare numbers, hashes of secrets. All of this
//! crate's unsafe code.

use std::ffi::{c_long, c_uint};
use std::ptr::{self, NonNull};

use aws_lc_sys as c;
use zeroize::Zeroizing;

use crate::kind::KeyKind;

/// Owns one reference of an EVP_PKEY, which AWS-LC wipes when it frees it.
pub(crate) struct Key(NonNull<c::EVP_PKEY>);

// SAFETY: AWS-LC counts references atomically, and the private-key operations used here take a lock of their own where
// they change shared state (RSA blinding); an EVP_PKEY that nobody assigns to may be used from several threads.
unsafe impl Send for Key {}
// SAFETY: as above.
unsafe impl Sync for Key {}

impl Drop for Key {
    fn drop(&mut self) {
        // SAFETY: the reference is ours and this is its end.
        unsafe { c::EVP_PKEY_free(self.0.as_ptr()) };
    }
}

impl Key {
    /// PKCS#8, PKCS#1 or SEC 1. None if it is neither, or something follows it.
    pub fn from_der(der: &[u8]) -> Option<Key> {
        let mut at = der.as_ptr();
        let len = c_long::try_from(der.len()).ok()?;
        // SAFETY: `at` points to `len` readable bytes; the function moves it within them.
        let key = unsafe { c::d2i_AutoPrivateKey(ptr::null_mut(), &mut at, len) };
        let key = NonNull::new(key).map(Key);
        if key.is_none() {
            clear_errors();
        }
        // SAFETY: `at` is within `der`, or one behind it.
        let used = unsafe { at.offset_from(der.as_ptr()) };
        key.filter(|_| usize::try_from(used).is_ok_and(|used| used == der.len()))
    }

    pub fn kind(&self) -> Option<KeyKind> {
        // SAFETY: the key is live.
        match unsafe { c::EVP_PKEY_id(self.0.as_ptr()) } {
            c::EVP_PKEY_RSA => {
                // SAFETY: the type has just been found to be RSA, so the key has one; lengths only are read.
                let bits = unsafe { c::RSA_bits(self.rsa()?.as_ptr()) };
                let whole = bits.is_multiple_of(8).then_some(bits / 8)?;
                Some(KeyKind::Rsa { bytes: u16::try_from(whole).ok()? })
            }
            c::EVP_PKEY_EC => {
                // SAFETY: the EC key is live, and AWS-LC gives every EC key of a parsed EVP_PKEY its group.
                let curve = unsafe { c::EC_GROUP_get_curve_name(c::EC_KEY_get0_group(self.ec()?.as_ptr())) };
                match curve {
                    c::NID_X9_62_prime256v1 => Some(KeyKind::P256),
                    c::NID_secp384r1 => Some(KeyKind::P384),
                    c::NID_secp521r1 => Some(KeyKind::P521),
                    _ => None,
                }
            }
            c::EVP_PKEY_ED25519 => Some(KeyKind::Ed25519),
            _ => None,
        }
    }

    fn rsa(&self) -> Option<NonNull<c::RSA>> {
        // SAFETY: the key is live; the answer is borrowed from it, or null.
        NonNull::new(unsafe { c::EVP_PKEY_get0_RSA(self.0.as_ptr()) })
    }

    fn ec(&self) -> Option<NonNull<c::EC_KEY>> {
        // SAFETY: the key is live; the answer is borrowed from it, or null.
        NonNull::new(unsafe { c::EVP_PKEY_get0_EC_KEY(self.0.as_ptr()) })
    }

    pub fn rsa_is_consistent(&self) -> bool {
        // SAFETY: the RSA key is live.
        let consistent = self.rsa().is_some_and(|rsa| unsafe { c::RSA_check_key(rsa.as_ptr()) } == 1);
        if !consistent {
            clear_errors();
        }
        consistent
    }

    /// SubjectPublicKeyInfo, DER.
    pub fn public_info(&self) -> Option<Box<[u8]>> {
        let mut out = ptr::null_mut();
        // SAFETY: the key is live, and with a null to fill in the function allocates.
        let len = unsafe { c::i2d_PUBKEY(self.0.as_ptr(), &mut out) };
        let len = usize::try_from(len).ok().filter(|_| !out.is_null())?;
        // SAFETY: the function has written `len` bytes there.
        let info = unsafe { std::slice::from_raw_parts(out, len) }.into();
        // SAFETY: allocated by AWS-LC, and not used after this.
        unsafe { c::OPENSSL_free(out.cast()) };
        Some(info)
    }

    /// An RSA key as PKCS #1 writes it (RFC 8017 §A.1.2).
    pub fn rsa_numbers(&self) -> Option<Zeroizing<Vec<u8>>> {
        let (mut out, mut len) = (ptr::null_mut(), 0);
        // SAFETY: the RSA key is live; the function allocates, and says how much.
        let done = unsafe { c::RSA_private_key_to_bytes(&mut out, &mut len, self.rsa()?.as_ptr()) } == 1;
        if !done || out.is_null() {
            clear_errors();
            return None;
        }
        // SAFETY: the function has written `len` bytes there.
        let numbers = Zeroizing::new(unsafe { std::slice::from_raw_parts(out, len) }.to_vec());
        // SAFETY: allocated by AWS-LC, which wipes what it frees, and not used after this.
        unsafe { c::OPENSSL_free(out.cast()) };
        Some(numbers)
    }

    /// Writes a P-256 key's number, big-endian; false for another key. The caller wipes `out`: a result that is handed
    /// up would leave a copy in every frame on its way.
    pub fn write_p256_scalar(&self, out: &mut [u8; 32]) -> bool {
        let Some(key) = self.ec() else { return false };
        // SAFETY: the EC key is live; its number is borrowed from it, or null.
        let number = unsafe { c::EC_KEY_get0_private_key(key.as_ptr()) };
        // SAFETY: the number is live and the buffer has the room that is named; a longer number is refused.
        !number.is_null() && unsafe { c::BN_bn2bin_padded(out.as_mut_ptr(), out.len(), number) } == 1
    }

    /// Whether `signature`, in DER, is one by this key.
    pub fn ecdsa_verifies(&self, digest: &[u8], signature: &[u8]) -> bool {
        let Some(key) = self.ec() else { return false };
        // SAFETY: the EC key is live and the buffers are as long as they are said to be; the type is not looked at.
        let right = unsafe {
            let (digest, len) = (digest.as_ptr(), digest.len());
            c::ECDSA_verify(0, digest, len, signature.as_ptr(), signature.len(), key.as_ptr().cast_const())
        } == 1;
        if !right {
            clear_errors();
        }
        right
    }

    /// c^d mod n on a block as long as the modulus, with blinding, and checked by AWS-LC before it is released.
    pub fn rsa_raw(&self, block: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        let rsa = self.rsa()?;
        // SAFETY: the RSA key is live.
        let size = unsafe { c::RSA_size(rsa.as_ptr()) } as usize;
        let mut out = Zeroizing::new(vec![0; size]);
        let mut len = 0;
        // SAFETY: both buffers are as long as they are said to be.
        let done = unsafe {
            let (from, to) = (block.as_ptr(), out.as_mut_ptr());
            c::RSA_sign_raw(rsa.as_ptr(), &mut len, to, size, from, block.len(), c::RSA_NO_PADDING)
        };
        finished(done == 1 && len == size, out)
    }

    /// DER.
    pub fn ecdsa(&self, digest: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        let key = self.ec()?;
        // SAFETY: the EC key is live.
        let mut out = Zeroizing::new(vec![0; unsafe { c::ECDSA_size(key.as_ptr()) }]);
        let mut len: c_uint = 0;
        // SAFETY: the output has the room that ECDSA_size asks for; the type is not looked at.
        let done = unsafe {
            c::ECDSA_sign(0, digest.as_ptr(), digest.len(), out.as_mut_ptr(), &mut len, key.as_ptr().cast_const())
        };
        out.truncate(len as usize);
        finished(done == 1, out)
    }

    pub fn ed25519(&self, message: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        const SIGNATURE_LEN: usize = 64;
        let mut out = Zeroizing::new(vec![0; SIGNATURE_LEN]);
        let mut len = SIGNATURE_LEN;
        let mut context = Context::new()?;
        // SAFETY: context and key are live, the buffers are as long as they are said to be; Ed25519 takes no digest.
        let done = unsafe {
            let context = context.as_mut_ptr();
            c::EVP_DigestSignInit(context, ptr::null_mut(), ptr::null(), ptr::null_mut(), self.0.as_ptr()) == 1
                && c::EVP_DigestSign(context, out.as_mut_ptr(), &mut len, message.as_ptr(), message.len()) == 1
        };
        finished(done && len == SIGNATURE_LEN, out)
    }
}

/// SHA-512 of what may be secret: AWS-LC wipes the state that it keeps meanwhile, which its safe function does not.
pub(crate) fn sha512(bytes: &[u8], digest: &mut [u8; 64]) {
    // SAFETY: the function reads as many bytes as are there, and writes 64.
    unsafe { c::SHA512(bytes.as_ptr(), bytes.len(), digest.as_mut_ptr()) };
}

/// Takes whole blocks into a state of SHA-256 (FIPS 180-4 §6.2.2).
pub(crate) fn sha256_blocks(state: &mut [u32; 8], blocks: &[[u8; 64]]) {
    // SAFETY: the function reads 64 bytes for each block, and reads and writes eight words of state.
    unsafe { c::SHA256_TransformBlocks(state.as_mut_ptr(), blocks.as_ptr().cast(), blocks.len()) };
}

/// A secret and the share that goes with it (RFC 7748 §6.1).
pub(crate) fn x25519_pair(secret: &mut [u8; 32], public: &mut [u8; 32]) {
    // SAFETY: the function writes 32 bytes to each.
    unsafe { c::X25519_keypair(public.as_mut_ptr(), secret.as_mut_ptr()) };
}

/// The share that goes with a secret.
pub(crate) fn x25519_share(secret: &[u8; 32]) -> [u8; 32] {
    let mut share = [0; 32];
    // SAFETY: the function reads 32 bytes and writes as many.
    unsafe { c::X25519_public_from_private(share.as_mut_ptr(), secret.as_ptr()) };
    share
}

/// X25519 of a secret and the peer's share. Absent if the agreement gives nothing but zeros, which the peer could
/// have known (RFC 7748 §6.1).
pub(crate) fn x25519(secret: &[u8; 32], peer: &[u8; 32]) -> Option<Zeroizing<Vec<u8>>> {
    let mut out = Zeroizing::new(vec![0; 32]);
    // SAFETY: the function reads 32 bytes of each number and writes as many.
    let done = unsafe { c::X25519(out.as_mut_ptr(), secret.as_ptr(), peer.as_ptr()) };
    finished(done == 1, out)
}

fn finished(done: bool, out: Zeroizing<Vec<u8>>) -> Option<Zeroizing<Vec<u8>>> {
    if done {
        return Some(out);
    }
    clear_errors();
    None
}

/// A failed call leaves its reasons in a queue of the thread; they would be taken for those of a later one.
fn clear_errors() {
    // SAFETY: touches the thread's own queue only.
    unsafe { c::ERR_clear_error() };
}

struct Context(NonNull<c::EVP_MD_CTX>);

impl Context {
    fn new() -> Option<Context> {
        // SAFETY: allocates, or answers null.
        NonNull::new(unsafe { c::EVP_MD_CTX_new() }).map(Context)
    }

    fn as_mut_ptr(&mut self) -> *mut c::EVP_MD_CTX {
        self.0.as_ptr()
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: ours, and not used after this.
        unsafe { c::EVP_MD_CTX_free(self.0.as_ptr()) };
    }
}
