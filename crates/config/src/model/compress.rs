//! The resolved model of a route's compression.

use serde::Serialize;

/// Compression of what servers answer to a route's requests: `compress` of `[[route]]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Compress {
    /// Codings in order of preference among those that a client likes as well. Default zstd, br, gzip.
    pub encodings: Vec<Encoding>,
    /// Media types of bodies that are compressed, in lower case. Default those of text.
    pub types: Vec<MediaType>,
    /// Length in bytes below which a body is left as it is, where its length is known. Default 1 KiB.
    pub minimum: u64,
    /// Levels, by coding.
    pub level: Levels,
    /// Whether responses to requests that carry credentials are compressed. Default those of the site's own pages.
    pub credentials: Credentials,
    /// Share of a core's time, in percent, up to which every response is compressed that may be; beyond it fewer are,
    /// and none on a core that is always busy. 100: no such limit. Default 90.
    pub busy_max: u8,
}

/// Content coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Encoding {
    /// RFC 8878
    Zstd,
    /// RFC 7932
    Br,
    /// RFC 1952
    Gzip,
}

/// Levels of the codings that a route has: a higher one takes more time, and makes less of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Levels {
    /// 1 to 9, default 5.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gzip: Option<u8>,
    /// 0 to 6, default 4.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub br: Option<u8>,
    /// 1 to 9, default 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zstd: Option<u8>,
}

/// Requests with credentials whose responses are compressed. Credentials are what a browser adds by itself, whichever
/// site makes it ask: cookies, passwords of its own dialogue, certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Credentials {
    /// Requests that pages of the same origin have made, or a person.
    SameOrigin,
    /// All requests.
    Always,
    /// No request with credentials.
    Never,
}

/// Media type as a configuration names it: `type/subtype`, `type/*` or `type/*+suffix`, in lower case.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct MediaType(pub String);

impl Encoding {
    /// All codings, in the order of the default.
    pub const ALL: [Encoding; 3] = [Encoding::Zstd, Encoding::Br, Encoding::Gzip];

    /// Name in Accept-Encoding and Content-Encoding.
    pub const fn name(self) -> &'static str {
        match self {
            Encoding::Zstd => "zstd",
            Encoding::Br => "br",
            Encoding::Gzip => "gzip",
        }
    }
}

impl Levels {
    /// Levels of a route that names none.
    pub const DEFAULT: Levels = Levels { gzip: Some(5), br: Some(4), zstd: Some(3) };

    /// Level of a coding.
    pub fn of(&self, encoding: Encoding) -> u8 {
        let of = |levels: &Levels| match encoding {
            Encoding::Zstd => levels.zstd,
            Encoding::Br => levels.br,
            Encoding::Gzip => levels.gzip,
        };
        of(self).or(of(&Levels::DEFAULT)).unwrap_or(1)
    }

    /// The levels of these codings alone.
    pub fn only(self, encodings: &[Encoding]) -> Levels {
        let of = |encoding, level: Option<u8>| level.filter(|_| encodings.contains(&encoding));
        Levels {
            gzip: of(Encoding::Gzip, self.gzip),
            br: of(Encoding::Br, self.br),
            zstd: of(Encoding::Zstd, self.zstd),
        }
    }
}

impl MediaType {
    /// Whether a media type without parameters, in any case, is one of these.
    pub fn covers(&self, media_type: &[u8]) -> bool {
        let Some((begin, end)) = self.0.split_once('*') else {
            return media_type.eq_ignore_ascii_case(self.0.as_bytes());
        };
        let (begin, end) = (begin.as_bytes(), end.as_bytes());
        media_type.len() > begin.len() + end.len()
            && media_type[..begin.len()].eq_ignore_ascii_case(begin)
            && media_type[media_type.len() - end.len()..].eq_ignore_ascii_case(end)
    }
}

impl Compress {
    /// Media types that are compressed unless a configuration names others: text, whatever its subtype, and what is
    /// made of text or has little entropy. Pictures, films, archives and fonts of the web are compressed as they are.
    pub const TYPES: [&'static str; 15] = [
        "text/*",
        "application/json",
        "application/*+json",
        "application/javascript",
        "application/x-javascript",
        "application/xml",
        "application/*+xml",
        "application/wasm",
        "application/x-ndjson",
        "application/yaml",
        "application/vnd.apple.mpegurl",
        "application/vnd.ms-fontobject",
        "font/ttf",
        "image/svg+xml",
        "image/bmp",
    ];
    /// Default of `minimum`, in bytes.
    pub const MINIMUM: u64 = 1024;
    /// Default of `busy_max`, in percent.
    pub const BUSY_MAX: u8 = 90;
}

impl Default for Compress {
    fn default() -> Compress {
        Compress {
            encodings: Encoding::ALL.to_vec(),
            types: Compress::TYPES.map(|text| MediaType(text.to_owned())).to_vec(),
            minimum: Compress::MINIMUM,
            level: Levels::DEFAULT,
            credentials: Credentials::SameOrigin,
            busy_max: Compress::BUSY_MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_media_type_covers_what_it_says() {
        let covers = |of: &str, text: &str| MediaType(of.to_owned()).covers(text.as_bytes());
        assert!(covers("text/*", "text/html") && covers("text/*", "TEXT/Event-Stream"));
        assert!(!covers("text/*", "text/") && !covers("text/*", "texts/html"));
        assert!(covers("application/json", "Application/JSON") && !covers("application/json", "application/json5"));
        assert!(covers("application/*+json", "application/ld+json"));
        assert!(
            !covers("application/*+json", "application/+json") && !covers("application/*+json", "application/json")
        );
    }
}
