//! Error codes of RST_STREAM and GOAWAY (RFC 9113 §7).

use std::fmt;

/// An error code as it stands on the wire; those that nobody has defined are kept as they came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reason(pub u32);

impl Reason {
    pub const NO_ERROR: Reason = Reason(0x0);
    pub const PROTOCOL_ERROR: Reason = Reason(0x1);
    pub const INTERNAL_ERROR: Reason = Reason(0x2);
    pub const FLOW_CONTROL_ERROR: Reason = Reason(0x3);
    pub const SETTINGS_TIMEOUT: Reason = Reason(0x4);
    pub const STREAM_CLOSED: Reason = Reason(0x5);
    pub const FRAME_SIZE_ERROR: Reason = Reason(0x6);
    pub const REFUSED_STREAM: Reason = Reason(0x7);
    pub const CANCEL: Reason = Reason(0x8);
    pub const COMPRESSION_ERROR: Reason = Reason(0x9);
    pub const CONNECT_ERROR: Reason = Reason(0xa);
    pub const ENHANCE_YOUR_CALM: Reason = Reason(0xb);
    pub const INADEQUATE_SECURITY: Reason = Reason(0xc);
    pub const HTTP_1_1_REQUIRED: Reason = Reason(0xd);

    /// Name in lower case and with dashes, as metrics and logs have it; `unknown` for a code that nobody has defined.
    pub fn as_str(self) -> &'static str {
        const NAMES: [&str; 14] = [
            "no-error",
            "protocol-error",
            "internal-error",
            "flow-control-error",
            "settings-timeout",
            "stream-closed",
            "frame-size-error",
            "refused-stream",
            "cancel",
            "compression-error",
            "connect-error",
            "enhance-your-calm",
            "inadequate-security",
            "http-1-1-required",
        ];
        NAMES.get(self.0 as usize).copied().unwrap_or("unknown")
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
