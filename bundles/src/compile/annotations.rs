//! `io.casemate.*`: what our own engine reads back; no restriction relies on them.

use std::collections::BTreeMap;

use super::profile;
use crate::{Digest, LaunchPlan};

/// Returns the annotations. The digest of the guard plan makes a swapped one visible.
pub(super) fn of(plan: &LaunchPlan, guard: &Digest) -> BTreeMap<&'static str, String> {
    let network = profile::network_name(profile::network(&plan.profile));
    let mut annotations = BTreeMap::from([
        ("io.casemate.base", plan.base.to_string()),
        ("io.casemate.guard", guard.to_string()),
        ("io.casemate.id", plan.id.to_string()),
        ("io.casemate.network", network.to_owned()),
        (
            "io.casemate.profile",
            profile::name(&plan.profile).to_owned(),
        ),
    ]);
    if let Some(tile) = profile::tile(&plan.profile) {
        annotations.insert("io.casemate.tile", tile.to_string());
    }
    annotations
}
