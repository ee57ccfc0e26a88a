//! Faults of requests, responses and relayed connections, in one table: the label for logs and metrics, who is to
//! blame, and the status of the answer.
//!
//! RFC 9209 §2.3 names such faults for the `Proxy-Status` field; the words here are older and finer.

/// Metric that counts a fault, and what it is a fault of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// A request's head or body that is malformed or over a limit.
    Head,
    /// A request that no route takes.
    Route,
    /// A proof of whom a request is from.
    Identity,
    /// The client's side of a request that has begun.
    Client,
    /// An attempt at a server.
    Server,
    /// TLS with a server.
    ServerTls,
    /// A wait for a connection to a server.
    Queue,
    /// A connection of TCP or TLS that is relayed.
    Relay,
    /// A response that is malformed.
    Response,
}

/// Side that brings a fault about. A server is ejected for its own alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The client, or whoever can send requests: a client can bring it about with servers that are well.
    Client,
    Server,
    /// This machine, or what it was configured to do.
    Engine,
}

/// Row of the table.
struct Row {
    label: &'static str,
    family: Family,
    blame: Blame,
    status: u16,
}

macro_rules! faults {
    ($($name:ident = $label:literal, $family:ident, $blame:ident, $status:literal;)*) => {
        /// Fault of a request, a response or a relayed connection.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Fault {
            $($name,)*
        }

        impl Fault {
            /// Every fault, at the place of its discriminant.
            pub const ALL: &'static [Fault] = &[$(Fault::$name,)*];
        }

        const TABLE: &[Row] = &[
            $(Row { label: $label, family: Family::$family, blame: Blame::$blame, status: $status },)*
        ];
    };
}

// Fault = its label, the family, who is to blame, the status of the answer (0: the request ends without one).
faults! {
    // Requests that are refused for their heads, or for a body that no parser may read in two ways.
    BackslashInPath = "backslash-in-path", Head, Client, 400;
    BadChunkEnd = "bad-chunk-end", Head, Client, 400;
    BadChunkExtension = "bad-chunk-extension", Head, Client, 400;
    BadChunkSize = "bad-chunk-size", Head, Client, 400;
    BadContentLength = "bad-content-length", Head, Client, 400;
    BadEscape = "bad-escape", Head, Client, 400;
    BadFieldName = "bad-field-name", Head, Client, 400;
    BadHost = "bad-host", Head, Client, 400;
    BadMaxForwards = "bad-max-forwards", Head, Client, 400;
    BadMethod = "bad-method", Head, Client, 400;
    BadRequestLine = "bad-request-line", Head, Client, 400;
    BadScheme = "bad-scheme", Head, Client, 400;
    BadTarget = "bad-target", Head, Client, 400;
    BadTargetByte = "bad-target-byte", Head, Client, 400;
    BadTe = "bad-te", Head, Client, 400;
    BadTransferEncoding = "bad-transfer-encoding", Head, Client, 400;
    BadVersion = "bad-version", Head, Client, 400;
    BareCr = "bare-cr", Head, Client, 400;
    BareLf = "bare-lf", Head, Client, 400;
    ChunkExtensionsTooLong = "chunk-extensions-too-long", Head, Client, 400;
    ChunkSizeTooLarge = "chunk-size-too-large", Head, Client, 400;
    ConnectNotSupported = "connect-not-supported", Head, Client, 501;
    ConnectionNamesFraming = "connection-names-framing", Head, Client, 400;
    ConnectionSpecificField = "connection-specific-field", Head, Client, 400;
    ContentLengthInTunnel = "content-length-in-tunnel", Head, Client, 400;
    ContentLengthWithTransferEncoding = "content-length-with-transfer-encoding", Head, Client, 400;
    ControlByte = "control-byte", Head, Client, 400;
    EmptyFieldName = "empty-field-name", Head, Client, 400;
    EmptyHost = "empty-host", Head, Client, 400;
    EmptyLinesBeforeRequest = "empty-lines-before-request", Head, Client, 400;
    EscapedNul = "escaped-nul", Head, Client, 400;
    EscapedSlash = "escaped-slash", Head, Client, 400;
    FieldWithoutColon = "field-without-colon", Head, Client, 400;
    FoldedField = "folded-field", Head, Client, 400;
    HeadCutShort = "head-cut-short", Head, Client, 400;
    HeadTooLong = "head-too-long", Head, Client, 431;
    HiddenSegment = "hidden-segment", Head, Client, 400;
    HostDiffersFromTarget = "host-differs-from-target", Head, Client, 400;
    MethodTooLong = "method-too-long", Head, Client, 501;
    NoHost = "no-host", Head, Client, 400;
    NoVersion = "no-version", Head, Client, 400;
    PathAboveRoot = "path-above-root", Head, Client, 400;
    RequestHeadTimeout = "request-head-timeout", Head, Client, 408;
    RequestLineTooLong = "request-line-too-long", Head, Client, 414;
    SeveralContentLengths = "several-content-lengths", Head, Client, 400;
    SeveralHosts = "several-hosts", Head, Client, 400;
    SeveralTransferEncodings = "several-transfer-encodings", Head, Client, 400;
    SpaceAroundValue = "space-around-value", Head, Client, 400;
    SpaceBeforeFirstField = "space-before-first-field", Head, Client, 400;
    SpaceInFieldName = "space-in-field-name", Head, Client, 400;
    TargetWithoutHost = "target-without-host", Head, Client, 400;
    TlsOnPlaintextPort = "tls-on-plaintext-port", Head, Client, 400;
    TooManyConnectionOptions = "too-many-connection-options", Head, Client, 400;
    TooManyFields = "too-many-fields", Head, Client, 431;
    TooManyTrailers = "too-many-trailers", Head, Client, 400;
    TraceNotAllowed = "trace-not-allowed", Head, Client, 405;
    TrailersTooLong = "trailers-too-long", Head, Client, 400;
    TransferEncodingInHttp10 = "transfer-encoding-in-http10", Head, Client, 400;
    UnknownExpectation = "unknown-expectation", Head, Client, 417;
    UnknownProtocol = "unknown-protocol", Head, Client, 501;
    UnknownTransferCoding = "unknown-transfer-coding", Head, Client, 501;
    VersionNotSupported = "version-not-supported", Head, Client, 505;
    // Requests that no route takes.
    Misdirected = "misdirected", Route, Client, 421;
    NoRoute = "no-route", Route, Client, 404;
    ClientCertificateRequired = "client-certificate-required", Route, Client, 403;
    RateLimited = "rate-limited", Route, Client, 429;
    Denied = "denied", Route, Client, 403;
    // Requests that have not proved whom they are from.
    CredentialsMissing = "credentials-missing", Identity, Client, 401;
    CredentialsRefused = "credentials-refused", Identity, Client, 401;
    TokenExpired = "token-expired", Identity, Client, 401;
    PasswordsBusy = "passwords-busy", Identity, Engine, 503;
    KeysMissing = "keys-missing", Identity, Engine, 503;
    AuthRefused = "auth-refused", Identity, Client, 401;
    AuthFailed = "auth-failed", Identity, Server, 503;
    // Requests that were cut short on the client's side.
    ClientClosed = "client-closed", Client, Client, 0;
    ClientReset = "client-reset", Client, Client, 0;
    ClientBodyTimeout = "client-body-timeout", Client, Client, 408;
    ClientReadTimeout = "client-read-timeout", Client, Client, 0;
    BadBody = "bad-body", Client, Client, 400;
    BodyTooLong = "body-too-long", Client, Client, 413;
    LengthRequired = "length-required", Client, Client, 411;
    BadScriptPath = "bad-script-path", Client, Client, 400;
    ParameterTooLong = "parameter-too-long", Client, Client, 431;
    NoUpgrade = "no-upgrade", Client, Client, 501;
    ClientTlsFailure = "tls-failure", Client, Client, 0;
    TunnelIdle = "tunnel-idle", Client, Client, 0;
    KeysExhausted = "keys-exhausted", Client, Client, 0;
    CutOff = "cut-off", Client, Engine, 0;
    // Attempts that failed between the engine and a server, or had no server to go to.
    ConnectRefused = "connect-refused", Server, Server, 502;
    ConnectFailed = "connect-failed", Server, Server, 502;
    ConnectTimeout = "connect-timeout", Server, Server, 504;
    TlsTimeout = "tls-timeout", Server, Server, 504;
    ClosedBeforeResponse = "closed-before-response", Server, Server, 502;
    ClosedDuringRequest = "closed-during-request", Server, Client, 502;
    FirstByteTimeout = "first-byte-timeout", Server, Server, 504;
    RequestTimeout = "request-timeout", Server, Client, 504;
    BufferFailed = "buffer-failed", Server, Engine, 503;
    RetriedStatus = "retried-status", Server, Server, 502;
    BodyTimeout = "body-timeout", Server, Server, 504;
    IdleBothWays = "idle-both-ways", Server, Client, 504;
    BodyCutShort = "body-cut-short", Server, Server, 502;
    BadResponse = "bad-response", Server, Server, 502;
    BadSwitch = "bad-switch", Server, Client, 502;
    ExcessData = "excess-data", Server, Server, 502;
    ResponseHeadTooLarge = "response-head-too-large", Server, Client, 502;
    ApplicationOverloaded = "application-overloaded", Server, Server, 503;
    WriteFailed = "write-failed", Server, Server, 502;
    StreamRefused = "stream-refused", Server, Server, 502;
    StreamReset = "stream-reset", Server, Server, 502;
    RequestReset = "request-reset", Server, Client, 502;
    Goaway = "goaway", Server, Client, 502;
    NoHttp2 = "no-http2", Server, Server, 502;
    NoExtendedConnect = "no-extended-connect", Server, Client, 502;
    UpgradeIgnored = "upgrade-ignored", Server, Client, 502;
    BadRequestForHttp2 = "bad-request-for-http2", Server, Client, 502;
    NoServer = "no-server", Server, Engine, 503;
    NoHealthyServer = "no-healthy-server", Server, Engine, 503;
    OutOfFiles = "out-of-files", Server, Engine, 503;
    OutOfPorts = "out-of-ports", Server, Engine, 503;
    EncoderFailed = "encoder-failed", Server, Engine, 503;
    // TLS with a server: the labels of `propylon_tls::UpstreamFailureReason`.
    CertificateBad = "certificate-bad", ServerTls, Server, 502;
    CertificateExpired = "certificate-expired", ServerTls, Server, 502;
    CertificateNameMismatch = "certificate-name-mismatch", ServerTls, Server, 502;
    CertificateNotYetValid = "certificate-not-yet-valid", ServerTls, Server, 502;
    CertificateUntrusted = "certificate-untrusted", ServerTls, Server, 502;
    ClientCertificateUnsigned = "client-certificate-unsigned", ServerTls, Engine, 503;
    ServerTlsAlert = "tls-alert", ServerTls, Server, 502;
    ServerTlsFailure = "tls-failure", ServerTls, Server, 502;
    ServerTlsHandshakeFailed = "tls-handshake-failed", ServerTls, Server, 502;
    TlsNotSpoken = "tls-not-spoken", ServerTls, Server, 502;
    // Requests that left a backend's queue without a connection.
    QueueFull = "queue-full", Queue, Engine, 503;
    QueueTimeout = "queue-timeout", Queue, Engine, 503;
    ClientGone = "client-gone", Queue, Client, 0;
    CircuitOpen = "circuit-open", Queue, Engine, 503;
    // Relayed connections, beside faults of the groups above.
    ServerReset = "server-reset", Relay, Server, 0;
    Idle = "idle", Relay, Client, 0;
    HelloTimeout = "hello-timeout", Relay, Client, 0;
    NotTls = "not-tls", Relay, Client, 0;
    BadHello = "bad-hello", Relay, Client, 0;
    // Responses that are refused, beside faults of requests' heads: a detail of the log, and `bad-response` elsewhere.
    BadStatusLine = "bad-status-line", Response, Server, 502;
    BadStatus = "bad-status", Response, Server, 502;
    SwitchedWithoutBeingAsked = "switched-without-being-asked", Response, Server, 502;
}

impl Fault {
    /// Kebab-case word of the access log (`fault`), of metrics (`reason`) and of answers.
    pub const fn label(self) -> &'static str {
        TABLE[self as usize].label
    }

    pub const fn family(self) -> Family {
        TABLE[self as usize].family
    }

    /// Whether it is one of an attempt at a server, whoever is to blame for it.
    pub const fn is_of_attempt(self) -> bool {
        matches!(self.family(), Family::Server | Family::ServerTls | Family::Response)
    }

    pub const fn blame(self) -> Blame {
        TABLE[self as usize].blame
    }

    /// Status of the answer; 0 where the request ends without one.
    pub const fn status(self) -> u16 {
        TABLE[self as usize].status
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.label())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_stands_once_in_a_family_and_statuses_fit_their_blame() {
        for (place, fault) in Fault::ALL.iter().enumerate() {
            assert_eq!(*fault as usize, place);
            let twins =
                Fault::ALL.iter().filter(|other| other.family() == fault.family() && other.label() == fault.label());
            assert_eq!(twins.count(), 1, "{fault}");
            let (status, family) = (fault.status(), fault.family());
            let is_fit = match family {
                Family::Head => (400..600).contains(&status),
                Family::Route => (400..500).contains(&status),
                Family::Client => status == 0 || (400..500).contains(&status) || *fault == Fault::NoUpgrade,
                Family::Server | Family::ServerTls => {
                    let is_busy = fault.blame() == Blame::Engine || *fault == Fault::ApplicationOverloaded;
                    [502, 503, 504].contains(&status) && (status == 503) == is_busy
                }
                Family::Identity => (status == 401) == (fault.blame() == Blame::Client),
                Family::Queue => (status == 503) == (fault.blame() == Blame::Engine),
                Family::Relay => status == 0,
                Family::Response => status == 502,
            };
            assert!(is_fit, "{fault}: {family:?} {status}");
        }
    }
}
