//! Proofs of whom a request is from: passwords, keys and tokens in, a name or a refusal out.
//!
//! [`Gate`] is what a route asks for. It looks at a head, and the answer is there at once but for passwords, which take
//! long on purpose: [`pool`] has threads for them, and [`Remembered`] spares the next request the same.

mod api_keys;
pub mod fuzz;
mod gate;
mod key_set;
mod lines;
mod load;
pub mod pool;
mod question;
mod remembered;
mod strict_json;
mod tokens;
mod users;

pub use gate::{Gate, Identity, Look, Looked, Refusal};
pub use load::{FetchId, Gates, KeptKeys, Loaded, Problem};
pub use question::{Forward, Question};
pub use remembered::Remembered;
pub use users::PasswordCheck;
