//! Enums of reasons, each with the label that logs and metrics have for it.

/// Declares an enum of reasons from a table: `Variant = "label";`. Discriminants are dense and begin at 0, so that
/// metrics can be indexed by them. `cargo xtask tidy` compares the tables with the manual's.
macro_rules! reasons {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $label:literal;)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum $name {
            $($(#[$doc])* $variant,)*
        }

        impl $name {
            /// Every reason, at the place of its discriminant.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// Kebab-case word of logs, and of the label `reason` of metrics.
            pub const fn label(self) -> &'static str {
                match self {
                    $($name::$variant => $label,)*
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.label())
            }
        }
    };
}
pub(crate) use reasons;
