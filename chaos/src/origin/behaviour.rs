//! How a server behaves, as it is told to on standard input, one line for all of it.

use tokio::sync::mpsc;

/// `slow_ms=0 fail_percent=0 cut_percent=0 deaf=0`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Behaviour {
    /// Before each answer.
    pub slow_ms: u64,
    /// Percentage of answers that are 500.
    pub fail_percent: u8,
    /// Percentage of requests, roughly, that lose their connection at some place on their way.
    pub cut_percent: u8,
    /// No connections are taken.
    pub deaf: bool,
}

impl Behaviour {
    pub fn line(&self) -> String {
        let Self { slow_ms, fail_percent, cut_percent, deaf } = self;
        format!("slow_ms={slow_ms} fail_percent={fail_percent} cut_percent={cut_percent} deaf={}", u8::from(*deaf))
    }

    pub fn parse(line: &str) -> Option<Self> {
        let mut behaviour = Self::default();
        for word in line.split_ascii_whitespace() {
            match word.split_once('=')? {
                ("slow_ms", value) => behaviour.slow_ms = value.parse().ok()?,
                ("fail_percent", value) => {
                    behaviour.fail_percent = value.parse().ok().filter(|percent| *percent <= 100)?
                }
                ("cut_percent", value) => {
                    behaviour.cut_percent = value.parse().ok().filter(|percent| *percent <= 100)?
                }
                ("deaf", value) => behaviour.deaf = value == "1",
                _ => return None,
            }
        }
        Some(behaviour)
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
        let behaviour = Behaviour { slow_ms: 250, fail_percent: 10, cut_percent: 100, deaf: true };
        assert_eq!(Behaviour::parse(&behaviour.line()), Some(behaviour));
        assert_eq!(Behaviour::parse(""), Some(Behaviour::default()));
        assert_eq!(Behaviour::parse("cut_percent=101"), None);
        assert_eq!(Behaviour::parse("misbehaving=1"), None);
    }
}
