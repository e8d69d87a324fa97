//! From a caller and a wish to a permission, with what had to be clamped.

use casemate_bundles::{Nesting, Network, TileId, UserId};

use crate::error::{ApiError, ErrorKind};
use crate::term::control::{Clamp, Net};

/// A known caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    user: UserId,
    role: Role,
}

/// What a caller is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// The holder of the owner token, an administrator.
    Owner,
}

impl Principal {
    pub(in crate::auth) const fn owner(user: UserId) -> Self {
        Self {
            user,
            role: Role::Owner,
        }
    }

    /// Returns the user.
    pub const fn user(&self) -> &UserId {
        &self.user
    }

    /// Returns the name of the role.
    pub const fn role(&self) -> &'static str {
        match self.role {
            Role::Owner => "owner",
        }
    }

    /// Returns whether the caller is an administrator.
    pub const fn is_admin(&self) -> bool {
        match self.role {
            Role::Owner => true,
        }
    }

    /// Grants a command run (capability `engine:process.run@1`).
    pub fn grant_run<T>(&self, run: T) -> Granted<T> {
        match self.role {
            Role::Owner => self.granted(run),
        }
    }

    /// Grants what only an administrator may do or see.
    pub fn grant_admin<T>(&self, what: T) -> Result<Granted<T>, ApiError> {
        if self.is_admin() {
            Ok(self.granted(what))
        } else {
            Err(denied("only an administrator may do this"))
        }
    }

    /// Grants access to a session or run of `creator` (TERM-17).
    pub fn grant_owned<T>(&self, creator: &UserId, what: T) -> Result<Granted<T>, ApiError> {
        if self.is_admin() || *creator == self.user {
            Ok(self.granted(what))
        } else {
            // Its existence is hidden.
            Err(ApiError::not_found("there is no such session or run"))
        }
    }

    /// Grants a session on a tile, clamped to what the caller may have (TERM-12).
    pub fn grant_opening(&self, request: OpeningRequest) -> Result<Granted<Opening>, ApiError> {
        let network = match (request.net, self.role) {
            (Net::None, Role::Owner) => Network::None,
            (Net::Host, Role::Owner) => Network::Host,
            (Net::Internet, Role::Owner) => {
                return Err(ApiError::unavailable(
                    &"net.internet",
                    "network scope internet is not available; ask for host or none",
                ));
            }
        };
        let mut clamped = Vec::new();
        if request.api {
            clamped.push(Clamp {
                field: "api".to_owned(),
                asked: "true".to_owned(),
                got: "false".to_owned(),
                rule: "tokens of tiles are not available".to_owned(),
            });
        }
        if request.gpu != "none" {
            clamped.push(Clamp {
                field: "gpu".to_owned(),
                asked: request.gpu,
                got: "none".to_owned(),
                rule: "GPUs are not available".to_owned(),
            });
        }
        Ok(self.granted(Opening {
            tile: request.tile,
            network,
            nesting: request.nesting,
            clamped,
        }))
    }

    fn granted<T>(&self, what: T) -> Granted<T> {
        Granted {
            principal: self.clone(),
            what,
        }
    }
}

fn denied(message: &str) -> ApiError {
    ApiError::new(ErrorKind::Denied, "DENIED", message)
}

/// Something that a caller may do. There is no way to make one but to ask [`Principal`].
#[derive(Debug, Clone)]
pub struct Granted<T> {
    principal: Principal,
    what: T,
}

impl<T> Granted<T> {
    /// Returns who may.
    pub const fn principal(&self) -> &Principal {
        &self.principal
    }

    /// Returns what.
    pub const fn get(&self) -> &T {
        &self.what
    }

    /// Returns who and what.
    pub fn into_parts(self) -> (Principal, T) {
        (self.principal, self.what)
    }
}

/// A wish for a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpeningRequest {
    /// The tile.
    pub tile: TileId,
    /// Network scope.
    pub net: Net,
    /// Whether the shell gets a token of its tile.
    pub api: bool,
    /// GPUs.
    pub gpu: String,
    /// Whether nested mounts and namespaces work.
    pub nesting: Nesting,
}

/// A session that may be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opening {
    /// The tile.
    pub tile: TileId,
    /// Effective network scope.
    pub network: Network,
    /// Whether nested mounts and namespaces work.
    pub nesting: Nesting,
    /// What was asked for and not granted.
    pub clamped: Vec<Clamp>,
}
