//! Switches that are turned on once: a run is cancelled, the service stops.

use tokio::sync::watch;

/// Waits until a switch is on; `false` where nobody can turn it on any more.
pub(crate) async fn is_on(switch: &mut watch::Receiver<bool>) -> bool {
    switch.wait_for(|on| *on).await.is_ok()
}
