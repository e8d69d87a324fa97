//! One launch: read, place, compile, verify, fork.

use std::os::fd::OwnedFd;
use std::path::Path;

use casemate_bundles::{
    Bundle, CompileError, Digest, Enforcement, Placement, Slice, StagePlan, Upper, compile,
    parse_guard, verify,
};
use casemate_protocol::{LaunchError, LaunchRequest};
use casemate_sys::dir::Owner;
use casemate_sys::process::{self, Fork};
use casemate_sys::{Error, memfd, socket};
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use super::place::{self, engine};
use super::{Known, Spawner, malformed};
use crate::keeper::{self, Account, KeeperFacts, Order, SOCKET};

/// Largest launch request.
const MAX_REQUEST: usize = 8 << 20;

/// What the service is told.
#[derive(Debug)]
pub(super) struct Launched {
    pub(super) digest: Digest,
    pub(super) enforcement: Enforcement,
}

fn failed(step: &'static str) -> impl FnOnce(Error) -> LaunchError {
    move |error| {
        tracing::error!(step, %error, "launch failed");
        match error.errno() {
            Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN => LaunchError::Busy {
                what: step.to_owned(),
            },
            errno => engine(step, errno.raw_os_error()),
        }
    }
}

impl Spawner {
    /// Starts a sandbox. Nothing is left where it fails.
    pub(super) fn launch(&mut self, descriptors: Vec<OwnedFd>) -> Result<Launched, LaunchError> {
        let [document, client] = <[OwnedFd; 2]>::try_from(descriptors)
            .map_err(|_other| malformed("a launch comes with two descriptors"))?;
        let request = read(&document)?;
        drop(document);
        check_client(&client)?;
        let id = request.plan.id.as_str().to_owned();
        if self.keepers.contains_key(&id) {
            return Err(LaunchError::Busy {
                what: "the sandbox's id".to_owned(),
            });
        }
        self.shown
            .check(&request.plan)
            .map_err(|message| LaunchError::Refused {
                code: "PLAN_SOURCE".to_owned(),
                message,
            })?;
        let (slice, slice_lock) = self.slices.choose(request.ids, &self.run_dir)?;
        let mut placed = place::place(self, &request.plan, slice)?;
        let mut locks: Vec<OwnedFd> = slice_lock.into_iter().collect();
        if let Some(choice) = request.layer {
            let layer = self.open_layer(&request.plan, choice, &placed)?;
            placed.placement.upper = Upper::Layer(layer.path);
            locks.push(layer.lock);
        }
        locks.push(placed.base_lock);
        let bundle = self.compile(&request, &placed.placement)?;
        let stage_plan: StagePlan =
            serde_json::from_slice(&bundle.stage).map_err(|_ours| engine("stage plan", 0))?;
        let id_maps = self.id_maps.of(&stage_plan).map_err(failed("idmap"))?;
        let payload = payload(&bundle, slice)?;
        let host_stage = self.make_stage(&id, slice)?;
        let launched = Launched {
            digest: bundle.digest.clone(),
            enforcement: bundle.enforcement.clone(),
        };
        let prepared = place::make_changes(&self.root_dir, &placed.placement)
            .and_then(|()| {
                socket::listen_at(&Path::new(placed.placement.stage.as_str()).join(SOCKET))
            })
            .map_err(failed("stage"));
        let listener = match prepared {
            Ok(listener) => listener,
            Err(error) => return Err(self.undo(&id, error)),
        };
        let order = Order {
            facts: KeeperFacts {
                id: id.clone(),
                label: request.label,
                digest: bundle.digest.clone(),
                enforcement: bundle.enforcement.clone(),
                supervision: request.supervision,
            },
            limits: place::limits(&request.plan).copied(),
            stdio: request.plan.stdio,
            placement: placed.placement,
            bundle,
            stage_plan,
            payload,
            id_maps,
            host_stage,
            listener,
            client,
            locks,
        };
        match self.fork(&id, order) {
            Ok(()) => Ok(launched),
            Err(error) => Err(self.undo(&id, error)),
        }
    }

    /// Removes what a launch has made: at once where nothing runs yet.
    fn undo(&mut self, id: &str, error: LaunchError) -> LaunchError {
        self.kill(id);
        self.settle();
        error
    }

    fn compile(
        &self,
        request: &LaunchRequest,
        placement: &Placement,
    ) -> Result<Bundle, LaunchError> {
        let bundle =
            compile(&request.plan, placement, &self.support).map_err(|error| match error {
                CompileError::Refused(refusal) => LaunchError::Refused {
                    code: refusal.code.to_string(),
                    message: refusal.message,
                },
                CompileError::Unavailable { component } => LaunchError::Unavailable {
                    component,
                    hint: "run `casemate doctor` for what is missing on this host".to_owned(),
                },
            })?;
        verify(&bundle, &request.plan, placement, &self.support).map_err(|violation| {
            tracing::error!(%violation, "the compiled bundle breaks a rule");
            LaunchError::Violation {
                rule: violation.rule.to_string(),
            }
        })?;
        Ok(bundle)
    }

    /// Makes and locks the stage. The lock says that a keeper lives; it goes with the last copy of
    /// the descriptor.
    fn make_stage(&self, id: &str, slice: Slice) -> Result<OwnedFd, LaunchError> {
        let name = Path::new(id);
        let owner = Owner {
            uid: 0,
            gid: slice.first(),
        };
        self.run_dir
            .make_dir(name, 0o710, owner)
            .map_err(|error| match error.errno() {
                Errno::EXIST => LaunchError::Busy {
                    what: "the sandbox's id".to_owned(),
                },
                _ => failed("stage")(error),
            })?;
        let stage = self
            .run_dir
            .open(name, OFlags::RDONLY | OFlags::DIRECTORY)
            .map_err(failed("stage"))?;
        flock(&stage, FlockOperation::NonBlockingLockExclusive)
            .map_err(Error::of("flock", || id.to_owned()))
            .map_err(failed("stage"))?;
        Ok(stage)
    }

    fn fork(&mut self, id: &str, order: Order) -> Result<(), LaunchError> {
        let child = match process::fork().map_err(failed("fork"))? {
            Fork::Parent(child) => child,
            Fork::Child => process::exit_now(self.become_keeper(order)),
        };
        let pidfd = process::pidfd_open(child).map_err(failed("pidfd"))?;
        self.keepers.insert(
            id.to_owned(),
            Known {
                pidfd,
                child: Some(child),
            },
        );
        Ok(())
    }

    /// In the child: gives up what is the spawner's, then keeps the sandbox.
    fn become_keeper(&mut self, order: Order) -> u8 {
        if let Err(error) = process::new_session() {
            tracing::error!(%error, "keeper has no session of its own");
            return 1;
        }
        // The service must see its spawner end, and other sandboxes' descriptors are no business
        // of this one.
        self.keepers.clear();
        self.dying.clear();
        self.queue.clear();
        self.id_maps = super::id_maps::Cache::default();
        self.forget_socket();
        keeper::run(order, self.surroundings())
    }
}

fn read(document: &OwnedFd) -> Result<LaunchRequest, LaunchError> {
    let bytes = memfd::read(document, MAX_REQUEST).map_err(|error| {
        malformed(match error.errno() {
            Errno::TOOBIG => "the launch request is longer than 8 MiB",
            _ => "the launch request cannot be read from its descriptor",
        })
    })?;
    serde_json::from_slice(&bytes).map_err(|error| malformed(&error.to_string()))
}

fn check_client(client: &OwnedFd) -> Result<(), LaunchError> {
    match rustix::net::sockopt::socket_type(client) {
        Ok(kind) if kind == rustix::net::SocketType::SEQPACKET => Ok(()),
        Ok(_) | Err(_) => Err(malformed("the second descriptor is no packet socket")),
    }
}

fn payload(bundle: &Bundle, slice: Slice) -> Result<Account, LaunchError> {
    let guard = parse_guard(&bundle.guard).map_err(|_ours| engine("guard plan", 0))?;
    let host = |id: u32| slice.first().checked_add(id).filter(|_| id < Slice::LEN);
    match (host(guard.uid), host(guard.gid)) {
        (Some(uid), Some(gid)) => Ok(Account { uid, gid }),
        _ => Err(engine("guard plan", 0)),
    }
}
