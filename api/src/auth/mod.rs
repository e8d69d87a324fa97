//! Who calls, and what they may do. A [`Granted`] is made here and nowhere else.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use casemate_bundles::{IdError, TileId, UserId};

mod grant;
mod logins;
mod once;
mod secret;
pub mod token;

pub use grant::{Granted, Opening, OpeningRequest, Principal};
use logins::Logins;
pub use logins::{ABSOLUTE as LOGIN_LIFETIME, LoginWatch, LoginsError};
use once::OnceTable;
pub use secret::{Secret, SecretDigest};
pub use token::TokenError;

use crate::store::Store;

/// How long a login link works.
const CODE_LIFETIME: Duration = Duration::from_mins(10);
/// How long a ticket works.
const TICKET_LIFETIME: Duration = Duration::from_secs(30);
/// Random bytes of a login code: 128 bits.
const CODE_BYTES: usize = 16;
/// Random bytes of a ticket.
const TICKET_BYTES: usize = 32;

/// The credentials of a service cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AuthError {
    /// The owner token.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The logins.
    #[error(transparent)]
    Logins(#[from] LoginsError),
    /// The owner's name.
    #[error("the owner has no valid name")]
    Owner(#[from] IdError),
}

/// What a ticket was made for; it opens nothing else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TicketScope {
    /// The route, `/ws/term`.
    pub route: String,
    /// The session or tile.
    pub target: TicketTarget,
    /// The Origin of the page that asked for it; `None` for a program.
    pub origin: Option<String>,
    /// The login that asked for it, with which everything ends that the ticket opens; `None` for
    /// the owner token.
    pub login: Option<SecretDigest>,
}

/// The session or tile of a ticket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TicketTarget {
    /// Attach to this session.
    Session(String),
    /// Open a session on this tile.
    Tile(TileId),
}

/// Every credential that the service knows.
#[derive(Debug)]
pub struct Auth {
    owner: UserId,
    owner_token: SecretDigest,
    logins: Logins,
    codes: OnceTable<UserId>,
    tickets: OnceTable<(Principal, TicketScope)>,
}

impl Auth {
    /// Opens the credentials of a workspace, making the owner token where there is none.
    pub fn open(workspace: &Path, store: Arc<Store>) -> Result<Self, AuthError> {
        Ok(Self {
            owner: UserId::parse("owner")?,
            owner_token: token::ensure(workspace)?,
            logins: Logins::new(store),
            codes: OnceTable::new(CODE_LIFETIME),
            tickets: OnceTable::new(TICKET_LIFETIME),
        })
    }

    /// Returns whose bearer token it is.
    pub fn bearer(&self, token: &Secret) -> Option<Principal> {
        (token.digest() == self.owner_token).then(|| Principal::owner(self.owner.clone()))
    }

    /// Returns whose cookie it is.
    pub fn cookie(&self, cookie: &Secret) -> Result<Option<Principal>, LoginsError> {
        Ok(self
            .logins
            .find(cookie)?
            .and_then(|user| self.principal(user)))
    }

    fn principal(&self, user: UserId) -> Option<Principal> {
        (user == self.owner).then(|| Principal::owner(user))
    }

    /// Mints a login code for the caller.
    pub fn mint_code(&self, principal: &Principal) -> Result<(Secret, Duration), LoginsError> {
        let code = self
            .codes
            .mint(CODE_BYTES, principal.user().clone())
            .map_err(|source| LoginsError::Random { source })?;
        Ok((code, self.codes.lifetime()))
    }

    /// Exchanges a login code for a cookie.
    pub fn log_in(&self, code: &Secret) -> Result<Option<(Principal, Secret)>, LoginsError> {
        let Some(principal) = self
            .codes
            .redeem(code)
            .and_then(|user| self.principal(user))
        else {
            return Ok(None);
        };
        let cookie = self.logins.start(principal.user())?;
        Ok(Some((principal, cookie)))
    }

    /// Ends a login.
    pub fn log_out(&self, cookie: &Secret) -> Result<(), LoginsError> {
        self.logins.end(cookie)
    }

    /// Mints a ticket.
    pub fn mint_ticket(
        &self,
        principal: &Principal,
        scope: TicketScope,
    ) -> Result<(Secret, Duration), LoginsError> {
        let ticket = self
            .tickets
            .mint(TICKET_BYTES, (principal.clone(), scope))
            .map_err(|source| LoginsError::Random { source })?;
        Ok((ticket, self.tickets.lifetime()))
    }

    /// Uses a ticket up. One that was made for another route or Origin is used up as well, and
    /// opens nothing.
    pub fn redeem_ticket(
        &self,
        ticket: &Secret,
        route: &str,
        origin: Option<&str>,
    ) -> Option<(Principal, TicketScope)> {
        let (principal, scope) = self.tickets.redeem(ticket)?;
        (scope.route == route && scope.origin.as_deref() == origin).then_some((principal, scope))
    }

    /// Watches a login.
    pub fn watch_login(&self, login: SecretDigest) -> LoginWatch {
        LoginWatch::new(&self.logins, login)
    }
}
