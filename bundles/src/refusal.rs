//! Why a plan is not compiled.

use std::fmt;

use crate::Component;

/// A plan that cannot become a bundle.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// The plan itself is wrong: whoever made it must change it.
    #[error("{0}")]
    Refused(PlanRefusal),
    /// The host lacks what the profile cannot do without (DEC-07).
    #[error("isolation component {component} is not available on this host")]
    Unavailable {
        /// What is missing.
        component: Component,
    },
}

impl From<PlanRefusal> for CompileError {
    fn from(refusal: PlanRefusal) -> Self {
        Self::Refused(refusal)
    }
}

/// A refused plan: a code for programs, a sentence for people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct PlanRefusal {
    /// What kind of mistake it is.
    pub code: PlanCode,
    /// What is wrong with which part, without host paths.
    pub message: String,
}

impl PlanRefusal {
    pub(crate) fn new(code: PlanCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }
}

/// Kinds of refusal, printed as `PLAN_…`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PlanCode {
    /// A mount goes where none may go.
    InvalidMount,
    /// Two mount targets are equal or one lies in the other (PSBX-12).
    TargetOverlap,
    /// The working directory is outside what the profile allows or does not exist (PSBX-09).
    BadCwd,
    /// A variable that the sandbox sets itself (PSBX-16).
    ReservedEnv,
    /// A number outside its limits.
    LimitOutOfRange,
}

impl fmt::Display for PlanCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InvalidMount => "PLAN_INVALID_MOUNT",
            Self::TargetOverlap => "PLAN_TARGET_OVERLAP",
            Self::BadCwd => "PLAN_BAD_CWD",
            Self::ReservedEnv => "PLAN_RESERVED_ENV",
            Self::LimitOutOfRange => "PLAN_LIMIT_OUT_OF_RANGE",
        })
    }
}
