//! The policy compiler: a pure function from a plan to three documents.
//!
//! [`check`] refuses what cannot become a bundle, [`layout`] names what lies where below the
//! stage, and one module each writes a document: [`config`], [`guard`], [`stage`].

mod annotations;
mod canonical;
mod check;
mod config;
mod environment;
mod guard;
mod host;
mod landlock;
mod layout;
mod mounts;
mod profile;
mod seccomp;
mod stage;

use crate::{Bundle, CompileError, Digest, HostSupport, LaunchPlan, Placement};

/// Compiles a plan at a placement for a host into a bundle. Pure: same input, same bytes.
///
/// # Errors
///
/// [`CompileError::Refused`] where the plan is wrong, [`CompileError::Unavailable`] where the host
/// lacks what the profile cannot do without (DEC-07).
pub fn compile(
    plan: &LaunchPlan,
    placement: &Placement,
    host: &HostSupport,
) -> Result<Bundle, CompileError> {
    check::plan(plan, placement)?;
    let enforcement = host::enforcement(&plan.profile, host)?;
    let layout = layout::Layout::new(plan, placement, host)?;
    let trees = layout.trees.len();
    let guard = canonical::to_bytes(&guard::document(plan, host), 16 << 10);
    let stage = canonical::to_bytes(
        &stage::plan(&layout, plan, placement),
        (4 << 10) + trees * 640,
    );
    let input = config::Input {
        plan,
        placement,
        host,
        layout: &layout,
        guard: &Digest::of(&guard),
    };
    let config = canonical::to_bytes(&config::document(&input), (8 << 10) + trees * 256);
    let digest = canonical::bundle_digest(&config, &guard, &stage);
    Ok(Bundle {
        config,
        guard,
        stage,
        digest,
        enforcement,
    })
}
