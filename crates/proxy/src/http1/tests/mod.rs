//! Dialogues in bytes.

mod random;
