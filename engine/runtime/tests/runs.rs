//! Command runs through a real spawner and its keepers.

mod common;

use casemate_protocol::ExitReason;
use common::{Ask, World};

#[test]
fn a_command_runs_to_its_end() {
    let mut world = World::start();
    let ask = Ask::new(&["true"]);
    let ended = world.run(&ask);
    assert_eq!(ended.record.reason, ExitReason::Exited { code: 0 });
    world.assert_nothing_left(&ask.id);
}
