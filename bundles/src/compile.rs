//! The policy compiler.

use crate::{Bundle, CompileError, Component, HostSupport, LaunchPlan, Placement};

/// Compiles a plan at a placement for a host into a bundle. Pure: same input, same bytes.
pub fn compile(
    plan: &LaunchPlan,
    placement: &Placement,
    host: &HostSupport,
) -> Result<Bundle, CompileError> {
    let (_plan, _placement, _host) = (plan, placement, host);
    Err(CompileError::Unavailable {
        component: Component::Init,
    })
}
