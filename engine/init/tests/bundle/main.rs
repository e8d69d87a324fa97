//! The guard init in real bundles under Debian's runc. Needs root.

mod guards;
mod support;
