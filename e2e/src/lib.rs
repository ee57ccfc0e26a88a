//! The harness that the stories share.
