//! How a server behaves, as it is told to on standard input, one line for all of it.

use tokio::sync::mpsc;

/// `slow_ms=0 fail_percent=0 cut_percent=0 deaf=0`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Manners {
    /// Before each answer.
    pub slow_ms: u64,
    /// Percentage of answers that are 500.
    pub fail_percent: u8,
    /// Percentage of requests, roughly, that lose their connection at some place of their way.
    pub cut_percent: u8,
    /// No connections are taken.
    pub deaf: bool,
}

impl Manners {
    pub fn line(&self) -> String {
        let Self { slow_ms, fail_percent, cut_percent, deaf } = self;
        format!("slow_ms={slow_ms} fail_percent={fail_percent} cut_percent={cut_percent} deaf={}", u8::from(*deaf))
    }

    pub fn parse(line: &str) -> Option<Self> {
        let mut manners = Self::default();
        for word in line.split_ascii_whitespace() {
            match word.split_once('=')? {
                ("slow_ms", value) => manners.slow_ms = value.parse().ok()?,
                ("fail_percent", value) => {
                    manners.fail_percent = value.parse().ok().filter(|percent| *percent <= 100)?
                }
                ("cut_percent", value) => manners.cut_percent = value.parse().ok().filter(|percent| *percent <= 100)?,
                ("deaf", value) => manners.deaf = value == "1",
                _ => return None,
            }
        }
        Some(manners)
    }
}

/// Lines of standard input, read by a thread: the runtime has no files.
pub fn orders() -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel(16);
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manners_are_told_and_understood() {
        let manners = Manners { slow_ms: 250, fail_percent: 10, cut_percent: 100, deaf: true };
        assert_eq!(Manners::parse(&manners.line()), Some(manners));
        assert_eq!(Manners::parse(""), Some(Manners::default()));
        assert_eq!(Manners::parse("cut_percent=101"), None);
        assert_eq!(Manners::parse("rude=1"), None);
    }
}
