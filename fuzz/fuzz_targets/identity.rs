#![no_main]

//! Files of users, of keys and of an issuer's public keys, tokens, and what they claim: nothing that is told to servers
//! could be another field.

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| propylon_identity::fuzz::read(bytes));
