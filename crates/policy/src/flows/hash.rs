//! Which bucket a connection belongs to: a keyed hash of its four-tuple that the program in the kernel computes as
//! well.
//!
//! The contract with the eBPF program, byte by byte:
//!
//! 1. A message of 36 bytes is laid out, all in network order:
//!
//! | bytes | content |
//! |---|---|
//! | 0..16 | source address; IPv4 as `::ffff:a.b.c.d` |
//! | 16..32 | destination address, in the same form |
//! | 32..34 | source port |
//! | 34..36 | destination port |
//!
//! 2. SipHash-1-3 (one round for each word, three at the end) of the message, keyed with the table's seed: `k0` is
//!    bytes 0..8 of the seed as a little-endian word, `k1` bytes 8..16. The message is read as four little-endian
//!    words of 8 bytes; the fifth and last one holds bytes 32..36 in its lower half and the length in its top byte:
//!    `36 << 56 | le32(bytes 32..36)`.
//! 3. `bucket = ((hash & 0xffff_ffff) * buckets) >> 32`, in 64 bits: the lower half of the hash, scaled. Any number of
//!    buckets up to 2^32 will do.
//!
//! Three vectors; `counting` is a seed of bytes 00, 01, 02 to 0f, and `ones` of 16 bytes ff:
//!
//! | seed | source | destination | hash | bucket of 1,024 | of 4,096 | of 65,536 |
//! |---|---|---|---|---|---|---|
//! | counting | 192.0.2.1, 40000 | 198.51.100.7, 443 | `0xf86ca80decca3bd9` | 947 | 3788 | 60618 |
//! | counting | 2001:db8::1, 40001 | 2001:db8:ffff::7, 443 | `0x5d6c264296bc637b` | 602 | 2411 | 38588 |
//! | ones | 10.1.2.3, 1 | 10.255.0.1, 65535 | `0xbc4ab11de4f96790` | 915 | 3663 | 58617 |
//!
//! The seed is secret to outsiders only as far as who knows it can aim connections at one engine; it is not a key to
//! anything else.

use std::net::{IpAddr, SocketAddr};

const MESSAGE_BYTES: usize = 36;

/// The bucket, below `buckets`, of packets from `source` to `destination`. `buckets` is at least 1.
pub fn bucket_of(seed: &[u8; 16], source: SocketAddr, destination: SocketAddr, buckets: u32) -> usize {
    let hash = siphash_1_3(seed, &message(source, destination));
    (((hash & 0xffff_ffff) * u64::from(buckets)) >> 32) as usize
}

/// SipHash-1-3 of a message of the table's one size, as by Aumasson and Bernstein (2012) with fewer rounds.
pub fn siphash_1_3(seed: &[u8; 16], message: &[u8; MESSAGE_BYTES]) -> u64 {
    let mut state = Sip::keyed(seed);
    let (words, rest) = message.as_chunks::<8>();
    for word in words {
        state.absorb(u64::from_le_bytes(*word));
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    last[7] = MESSAGE_BYTES as u8;
    state.absorb(u64::from_le_bytes(last));
    state.finish()
}

struct Sip([u64; 4]);

impl Sip {
    fn keyed(seed: &[u8; 16]) -> Sip {
        let key = u128::from_le_bytes(*seed);
        let (first, second) = (key as u64, (key >> 64) as u64);
        // "somepseudorandomlygeneratedbytes", as the paper has it.
        Sip([
            first ^ 0x736f_6d65_7073_6575,
            second ^ 0x646f_7261_6e64_6f6d,
            first ^ 0x6c79_6765_6e65_7261,
            second ^ 0x7465_6462_7974_6573,
        ])
    }

    fn absorb(&mut self, word: u64) {
        self.0[3] ^= word;
        self.round();
        self.0[0] ^= word;
    }

    fn finish(mut self) -> u64 {
        self.0[2] ^= 0xff;
        self.round();
        self.round();
        self.round();
        self.0[0] ^ self.0[1] ^ self.0[2] ^ self.0[3]
    }

    fn round(&mut self) {
        let [mut a, mut b, mut c, mut d] = self.0;
        a = a.wrapping_add(b);
        b = b.rotate_left(13) ^ a;
        a = a.rotate_left(32);
        c = c.wrapping_add(d);
        d = d.rotate_left(16) ^ c;
        a = a.wrapping_add(d);
        d = d.rotate_left(21) ^ a;
        c = c.wrapping_add(b);
        b = b.rotate_left(17) ^ c;
        c = c.rotate_left(32);
        self.0 = [a, b, c, d];
    }
}

fn message(source: SocketAddr, destination: SocketAddr) -> [u8; MESSAGE_BYTES] {
    let mut message = [0; MESSAGE_BYTES];
    message[..16].copy_from_slice(&sixteen_bytes(source.ip()));
    message[16..32].copy_from_slice(&sixteen_bytes(destination.ip()));
    message[32..34].copy_from_slice(&source.port().to_be_bytes());
    message[34..].copy_from_slice(&destination.port().to_be_bytes());
    message
}

fn sixteen_bytes(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNTING: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

    #[test]
    fn the_vectors_of_the_contract_hold() {
        let vectors = [
            (COUNTING, "192.0.2.1:40000", "198.51.100.7:443", 0xf86c_a80d_ecca_3bd9, [947, 3788, 60618]),
            (COUNTING, "[2001:db8::1]:40001", "[2001:db8:ffff::7]:443", 0x5d6c_2642_96bc_637b, [602, 2411, 38588]),
            ([0xff; 16], "10.1.2.3:1", "10.255.0.1:65535", 0xbc4a_b11d_e4f9_6790, [915, 3663, 58617]),
        ];
        for (seed, source, destination, hash, buckets) in vectors {
            let (source, destination) = (source.parse().unwrap(), destination.parse().unwrap());
            assert_eq!(siphash_1_3(&seed, &message(source, destination)), hash);
            for (count, bucket) in [1024, 4096, 65536].into_iter().zip(buckets) {
                assert_eq!(bucket_of(&seed, source, destination, count), bucket);
            }
        }
    }

    #[test]
    fn an_ipv4_address_and_its_mapped_form_have_one_bucket() {
        let destination = "198.51.100.7:443".parse().unwrap();
        let plain = bucket_of(&COUNTING, "192.0.2.1:4000".parse().unwrap(), destination, 1024);
        let mapped = bucket_of(&COUNTING, "[::ffff:192.0.2.1]:4000".parse().unwrap(), destination, 1024);
        assert_eq!(plain, mapped);
    }

    #[test]
    fn connections_spread_evenly_over_buckets() {
        let destination = "198.51.100.7:443".parse().unwrap();
        let mut counts = [0u32; 64];
        for number in 0..64_000u32 {
            let source = SocketAddr::new(IpAddr::V4((0x0a00_0000 + number / 100).into()), (1024 + number % 100) as u16);
            counts[bucket_of(&COUNTING, source, destination, 64)] += 1;
        }
        // 1,000 are expected in each, give or take 32: five times that is one in a million.
        assert!(counts.iter().all(|count| (840..=1160).contains(count)), "{counts:?}");
    }

    #[test]
    fn all_buckets_are_within_the_table() {
        let destination = "198.51.100.7:443".parse().unwrap();
        for buckets in [1, 2, 3, 1000, u32::MAX] {
            for port in 0..200 {
                let source = SocketAddr::new(IpAddr::V4([10, 0, 0, 1].into()), port);
                assert!(bucket_of(&COUNTING, source, destination, buckets) < buckets as usize);
            }
        }
    }
}
