//! `propylon top`: what an engine is doing, once a second, in a terminal. It asks the admin address and keeps nothing.

mod sample;
mod screen;

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use propylon_config::AdminBind;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};

use super::admin_client::Where;
pub use sample::{Condition, attention};
use sample::{Figures, Sample};
pub use screen::{duration, lasting};

#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    engine: Where,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=60))]
    interval: u32,
    /// Print one table as text and end (what happens where standard output is no terminal)
    #[arg(long)]
    once: bool,
    /// Print one set of figures as JSON on standard output and end
    #[arg(long)]
    json: bool,
}

pub fn main(arguments: &Arguments) -> ExitCode {
    match top(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("propylon: {what}");
            ExitCode::FAILURE
        }
    }
}

fn top(arguments: &Arguments) -> Result<(), String> {
    let (admin, _) = arguments.engine.find()?;
    let interval = Duration::from_secs(arguments.interval.into());
    let first = Sample::take(&admin)?;
    if arguments.once || arguments.json || !io::stdout().is_terminal() {
        std::thread::sleep(interval);
        let figures = Figures::between(&first, &Sample::take(&admin)?);
        match arguments.json {
            true => println!("{}", figures.to_json()),
            false => print!("{}", screen::to_text(&figures)),
        }
        return Ok(());
    }
    watch(&admin, interval, first).map_err(|error| format!("the terminal cannot be used: {error}; try --once"))
}

/// Draws until q, Esc or Ctrl-C. An engine that does not answer for a while is told of, and asked again.
fn watch(admin: &AdminBind, interval: Duration, first: Sample) -> io::Result<()> {
    let mut terminal = ratatui::try_init()?;
    let outcome = (|| {
        let (mut last, mut figures, mut trouble) = (first, None, None);
        let mut due = Instant::now() + interval.min(Duration::from_secs(1));
        loop {
            terminal.draw(|frame| screen::draw(frame, figures.as_ref(), trouble.as_deref()))?;
            if !event::poll(due.saturating_duration_since(Instant::now()))? {
                due = Instant::now() + interval;
                match Sample::take(admin) {
                    Ok(next) => {
                        figures = Some(Figures::between(&last, &next));
                        (last, trouble) = (next, None);
                    }
                    Err(what) => trouble = Some(what),
                }
            } else if let Event::Key(key) = event::read()?
                && key.kind == KeyEventKind::Press
                && (matches!(key.code, KeyCode::Char('q') | KeyCode::Esc)
                    || key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL))
            {
                return Ok(());
            }
        }
    })();
    ratatui::restore();
    outcome
}
