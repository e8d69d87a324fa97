//! Resource limits of a sandbox, all present, units in the type.

use serde::{Deserialize, Serialize};

/// What a sandbox may take at the most. Enforced by cgroup v1 or v2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Memory with its page cache and tmpfs, no swap.
    pub memory: MemoryBytes,
    /// Tasks, threads included.
    pub pids: Pids,
    /// Processor time.
    pub cpu: CpuMillis,
}

impl Limits {
    /// The defaults of a command run: 512 MiB, 128 tasks, one processor.
    pub const RUN: Self = Self {
        memory: MemoryBytes(512 << 20),
        pids: Pids(128),
        cpu: CpuMillis(1000),
    };
    /// The defaults of restricted terminals and backends: 2 GiB, 512 tasks, four processors.
    pub const TILE: Self = Self {
        memory: MemoryBytes(2 << 30),
        pids: Pids(512),
        cpu: CpuMillis(4000),
    };
}

/// Why a number is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{name} {value} is outside {min} to {max}")]
pub struct LimitError {
    /// Which limit.
    pub name: &'static str,
    /// What was asked.
    pub value: u64,
    /// The least that is accepted.
    pub min: u64,
    /// The most that is accepted.
    pub max: u64,
}

macro_rules! limit {
    ($(#[$doc:meta])* $name:ident, $label:literal, $min:expr, $max:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "u64", into = "u64")]
        pub struct $name(u64);

        impl $name {
            /// Parses the number.
            pub const fn parse(value: u64) -> Result<Self, LimitError> {
                if value < $min || value > $max {
                    return Err(LimitError { name: $label, value, min: $min, max: $max });
                }
                Ok(Self(value))
            }

            /// Returns the number.
            pub const fn get(self) -> u64 {
                self.0
            }
        }

        impl TryFrom<u64> for $name {
            type Error = LimitError;

            fn try_from(value: u64) -> Result<Self, LimitError> {
                Self::parse(value)
            }
        }

        impl From<$name> for u64 {
            fn from(limit: $name) -> Self {
                limit.0
            }
        }
    };
}

limit! {
    /// Bytes of memory.
    MemoryBytes, "memory_bytes", 8 << 20, 1 << 50
}
limit! {
    /// Number of tasks.
    Pids, "pids", 4, 1 << 22
}
limit! {
    /// Thousandths of one processor.
    CpuMillis, "cpu_millis", 10, 1_024_000
}
