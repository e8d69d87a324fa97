//! Test cases and the ids that they cover.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use libtest_mimic::{Arguments, Failed, Trial};

use crate::world::World;

/// One behaviour with the ids of the requirements or adversarial cases whose sentence it asserts.
#[derive(Debug)]
pub struct Case {
    name: String,
    ids: Vec<&'static str>,
}

impl Case {
    /// A case of this name.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            ids: Vec::new(),
        }
    }

    /// Says that the case asserts the sentence of `id`.
    #[must_use]
    pub fn covers(mut self, id: &'static str) -> Self {
        self.ids.push(id);
        self
    }

    /// Makes a trial of it. The ids stand before the name, so that `cargo test E-01` finds them.
    pub fn run(self, body: impl FnOnce() -> Result<()> + Send + 'static) -> Trial {
        let name = if self.ids.is_empty() {
            self.name
        } else {
            format!("{} {}", self.ids.join(" "), self.name)
        };
        Trial::test(name, move || {
            body().map_err(|error| Failed::from(format!("{error:#}")))
        })
    }
}

/// Cases that share a world; `with` makes a trial of each.
#[derive(Debug)]
pub struct Shared(Arc<World>);

impl Shared {
    /// Makes the world.
    pub fn create() -> Result<Self> {
        Ok(Self(Arc::new(World::create()?)))
    }

    /// A trial of a case in the world.
    pub fn with(&self, case: Case, body: fn(&World) -> Result<()>) -> Trial {
        let world = Arc::clone(&self.0);
        case.run(move || body(&world))
    }
}

/// Main function of a suite: enters a private mount namespace, makes the cases and runs them one
/// at a time unless the command line says otherwise.
pub fn main(cases: impl FnOnce() -> Result<Vec<Trial>>) -> ExitCode {
    match start(cases) {
        Ok(code) => code,
        Err(error) => {
            report(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn start(cases: impl FnOnce() -> Result<Vec<Trial>>) -> Result<ExitCode> {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(1);
    if arguments.list {
        return Ok(libtest_mimic::run(&arguments, cases()?).exit_code());
    }
    crate::world::enter_private_mounts().context("private mount namespace")?;
    let _groups = crate::groups::OwnGroups::enter().context("control groups")?;
    Ok(libtest_mimic::run(&arguments, cases()?).exit_code())
}

/// Says something on standard error.
pub fn report(text: &str) {
    use std::io::Write as _;
    let _nobody_may_listen = writeln!(std::io::stderr(), "{text}");
}
