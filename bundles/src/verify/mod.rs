//! The verifier: proves that a bundle obeys its plan without any of the compiler's code.
//!
//! The three documents are parsed here as if a stranger had written them; every expectation stands
//! in a table of this module, derived from the plan and the specification a second time.

pub(crate) mod bpf;
mod calls;
mod document;
mod facts;
mod guard;
mod landlock;
mod linux;
mod mounts;
mod policy;
mod process;
mod program;
mod rule;
mod scan;
mod secrets;
mod stage;

pub use self::bpf::ProgramError;
use self::facts::Facts;
pub use self::rule::{Rule, Violation};
use crate::{Bundle, Digest, HostSupport, LaunchPlan, Placement};

/// Says that a bundle was verified; made by [`verify`] alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proof {
    digest: Digest,
}

impl Proof {
    /// Returns the digest of the three verified documents.
    pub const fn digest(&self) -> &Digest {
        &self.digest
    }
}

/// Proves that `bundle` gives `plan` at `placement`, no more and no less.
///
/// # Errors
///
/// The first rule that is broken. A bundle that this program compiled breaks none, so a violation
/// is an internal error and the sandbox must not start.
pub fn verify(
    bundle: &Bundle,
    plan: &LaunchPlan,
    placement: &Placement,
    host: &HostSupport,
) -> Result<Proof, Violation> {
    let facts = Facts::new(plan, placement, host);
    let digest = document::seal(bundle)?;
    let documents = document::Documents::parse(bundle)?;
    policy::host(&facts)?;
    policy::enforcement(&bundle.enforcement, &facts)?;
    linux::check(&documents.config, &facts, &Digest::of(&bundle.guard))?;
    process::check(&documents.config.process, &facts)?;
    let clones = stage::check(&documents.stage, &facts)?;
    mounts::check(&documents.config.mounts, &clones, &facts)?;
    secrets::check(&documents, &facts)?;
    guard::check(&documents.guard, &facts)?;
    Ok(Proof { digest })
}
