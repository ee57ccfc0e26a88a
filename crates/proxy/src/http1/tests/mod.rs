//! Dialogues in bytes.
