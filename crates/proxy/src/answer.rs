//! Responses of the engine itself.

/// An answer that is given here.
#[derive(Clone, Copy)]
pub struct Answer<'a> {
    pub status: u16,
    pub fields: &'a [(&'a str, &'a str)],
    pub content_type: &'a str,
    pub body: &'a str,
    /// The connection ends with it.
    pub close: bool,
}

impl Answer<'_> {
    pub fn plain(status: u16) -> Answer<'static> {
        Answer { status, fields: &[], content_type: "text/plain; charset=utf-8", body: "", close: false }
    }
}
