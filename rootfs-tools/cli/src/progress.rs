//! Progress of long steps: a bar on a terminal, lines elsewhere, JSON lines where asked.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use casemate_rootfs::Step;
use indicatif::{BinaryBytes, ProgressBar, ProgressStyle};

/// How often a line is printed where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// Shows the progress of one import.
#[derive(Debug)]
pub(crate) struct Progress {
    form: Form,
    phase: Option<&'static str>,
    last_line: Instant,
    /// Bytes of the input, where it is known.
    input_bytes: Option<u64>,
}

#[derive(Debug)]
enum Form {
    Bar(ProgressBar),
    Lines,
    Json,
}

impl Progress {
    pub(crate) fn new(json: bool, input_bytes: Option<u64>) -> Self {
        let form = if json {
            Form::Json
        } else if io::stderr().is_terminal() {
            Form::Bar(ProgressBar::no_length())
        } else {
            Form::Lines
        };
        Self {
            form,
            phase: None,
            last_line: Instant::now(),
            input_bytes,
        }
    }

    /// Shows a step of an import.
    pub(crate) fn step(&mut self, step: Step) {
        match step {
            Step::Reading(bytes) => self.bytes("reading", bytes, self.input_bytes),
            Step::Fetching { bytes, of } => self.bytes("fetching", bytes, Some(of)),
            Step::Compressing { bytes, of } => self.bytes("compressing", bytes, Some(of)),
            Step::Writing { bytes, of } => self.bytes("writing", bytes, Some(of)),
            Step::Unpacking { bytes, of } => self.bytes("unpacking", bytes, Some(of)),
            Step::Synced => self.phase("storing"),
            Step::BlobsStored | Step::SnapshotStored | Step::Pinned => {}
            Step::Named => self.finish(),
        }
    }

    /// Clears what is shown.
    pub(crate) fn finish(&self) {
        if let Form::Bar(bar) = &self.form {
            bar.finish_and_clear();
        }
    }

    /// Shows a step that has no number, or a line of the program that does it.
    pub(crate) fn text(&mut self, text: &str) {
        match &self.form {
            Form::Bar(bar) => {
                bar.set_style(ProgressStyle::default_spinner());
                bar.enable_steady_tick(Duration::from_millis(120));
                bar.set_message(text.to_owned());
            }
            Form::Lines => line(&format!("rootfs-tools: {text}")),
            Form::Json => line(&serde_json::json!({ "progress": text }).to_string()),
        }
    }

    fn phase(&mut self, phase: &'static str) {
        if self.phase.replace(phase) != Some(phase) {
            self.text(phase);
        }
    }

    fn bytes(&mut self, phase: &'static str, bytes: u64, of: Option<u64>) {
        let begins = self.phase.replace(phase) != Some(phase);
        if let Form::Bar(bar) = &self.form {
            if begins {
                restart(bar, phase, of);
            }
            bar.set_position(bytes);
            return;
        }
        if !begins && self.last_line.elapsed() < LINE_EVERY {
            return;
        }
        self.last_line = Instant::now();
        match (&self.form, of) {
            (Form::Json, of) => {
                let document = serde_json::json!({ "progress": phase, "bytes": bytes, "of": of });
                line(&document.to_string());
            }
            (_, Some(of)) => {
                line(&format!(
                    "rootfs-tools: {phase} {} of {}",
                    BinaryBytes(bytes),
                    BinaryBytes(of)
                ));
            }
            (_, None) => line(&format!("rootfs-tools: {phase} {}", BinaryBytes(bytes))),
        }
    }
}

fn restart(bar: &ProgressBar, phase: &'static str, of: Option<u64>) {
    bar.disable_steady_tick();
    let template = if of.is_some() {
        "{msg:10} {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}"
    } else {
        "{msg:10} {spinner} {binary_bytes} {binary_bytes_per_sec}"
    };
    // The template is a constant; the plain style stands in where it has a mistake.
    let style = ProgressStyle::with_template(template);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.reset();
    if let Some(of) = of {
        bar.set_length(of);
    }
    bar.set_message(phase);
}

/// Prints a line of progress. That nobody reads it is no reason to fail.
fn line(text: &str) {
    drop(writeln!(io::stderr().lock(), "{text}"));
}
