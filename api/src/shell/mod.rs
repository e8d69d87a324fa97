//! The structured Shell: one dispatcher for typed commands. It evaluates no text and starts no
//! process but through [`exec`](crate::exec), whose data is the result of the run.

use casemate_bundles::Argv;
use serde_json::{Value, json};

pub mod wire;

use wire::{Denial, Diagnostic, Reason, ShellOutput, ShellRequest};

use crate::audit::{AuditId, Decision, Event, Happened};
use crate::auth::Principal;
use crate::error::{ApiError, ErrorKind};
use crate::exec::Answer;
use crate::exec::wire::{ExecRequest, ExecResult, LimitsRequest, Outcome};
use crate::http::{App, start_run, wait_or_cancel};

const FAILED: u8 = 1;
const USAGE: u8 = 2;
const TIMED_OUT: u8 = 124;
const CANCELLED: u8 = 130;

/// A command of the Shell.
struct Descriptor {
    command: Command,
    name: &'static str,
    usage: &'static str,
    capability: &'static str,
    safe_for_agents: bool,
    summary: &'static str,
}

/// Which command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Command {
    Help,
    Exec,
}

/// Every command there is; all are built in.
const COMMANDS: [Descriptor; 2] = [
    Descriptor {
        command: Command::Help,
        name: "help",
        usage: "help [COMMAND]",
        capability: "shell:help@1",
        safe_for_agents: true,
        summary: "lists the commands, or describes one",
    },
    Descriptor {
        command: Command::Exec,
        name: "exec",
        usage: "exec -- ARGV…",
        capability: "engine:process.run@1",
        safe_for_agents: true,
        summary: "runs an argument vector in a sandbox of its own",
    },
];

impl Descriptor {
    fn describe(&self) -> Value {
        json!({
            "name": self.name,
            "usage": self.usage,
            "capability": self.capability,
            "safeForAgents": self.safe_for_agents,
            "summary": self.summary,
            "outputSchema": match self.command {
                Command::Help => json!({ "type": "object", "required": ["commands"] }),
                Command::Exec => schemars::schema_for!(ExecResult).to_value(),
            },
        })
    }
}

fn find(name: &str) -> Option<&'static Descriptor> {
    COMMANDS.iter().find(|descriptor| descriptor.name == name)
}

/// Dispatches a command.
pub(crate) async fn dispatch(
    app: &App,
    principal: &Principal,
    request: ShellRequest,
) -> Result<ShellOutput, ApiError> {
    let argv =
        Argv::parse(request.argv.clone()).map_err(|error| ApiError::invalid(error.to_string()))?;
    let (name, arguments) = match argv.as_slice() {
        [name, arguments @ ..] => (name.as_str(), arguments),
        [] => return Err(ApiError::invalid("argv is empty")),
    };
    let context = Context {
        app,
        principal,
        argv: argv.as_slice(),
    };
    let Some(descriptor) = find(name) else {
        return context.unknown(name).await;
    };
    match descriptor.command {
        Command::Help => context.help(descriptor, &request, arguments).await,
        Command::Exec => context.exec(descriptor, &request, arguments).await,
    }
}

struct Context<'a> {
    app: &'a App,
    principal: &'a Principal,
    argv: &'a [String],
}

impl Context<'_> {
    async fn record(
        &self,
        capability: &'static str,
        decision: Decision,
        exit_code: u8,
    ) -> Result<AuditId, ApiError> {
        let id = AuditId::fresh();
        let event = Event {
            id: id.clone(),
            event: Happened::ShellCommand,
            subject: self.subject(),
            capability,
            decision,
            object: None,
            argv: Some(self.argv.to_vec()),
            detail: json!({ "exit_code": exit_code }),
        };
        self.app
            .audit()
            .record(event)
            .await
            .map_err(ApiError::internal)?;
        Ok(id)
    }

    fn subject(&self) -> String {
        format!("user:{}", self.principal.user())
    }

    async fn unknown(&self, name: &str) -> Result<ShellOutput, ApiError> {
        let id = self.record("shell:unknown", Decision::Deny, USAGE).await?;
        let audit_id = id.as_str().to_owned();
        Ok(ShellOutput {
            exit_code: USAGE,
            data: Value::Null,
            audit_id: audit_id.clone(),
            denial: Some(Denial {
                audit_id,
                subject: self.subject(),
                capability: None,
                environment: "default",
                decision: "deny",
                reasons: vec![Reason {
                    code: "UNKNOWN_COMMAND",
                    detail: format!("there is no command {name:?}"),
                }],
                suggestions: vec!["help".to_owned()],
            }),
            diagnostics: Vec::new(),
        })
    }

    async fn finish(
        &self,
        descriptor: &Descriptor,
        exit_code: u8,
        data: Value,
        diagnostics: Vec<Diagnostic>,
    ) -> Result<ShellOutput, ApiError> {
        let id = self
            .record(descriptor.capability, Decision::Allow, exit_code)
            .await?;
        Ok(ShellOutput {
            exit_code,
            data,
            audit_id: id.as_str().to_owned(),
            denial: None,
            diagnostics,
        })
    }

    async fn usage(
        &self,
        descriptor: &Descriptor,
        message: String,
    ) -> Result<ShellOutput, ApiError> {
        let diagnostic = Diagnostic {
            code: "SHELL_USAGE".to_owned(),
            message: format!("{message}; usage: {}", descriptor.usage),
        };
        self.finish(descriptor, USAGE, Value::Null, vec![diagnostic])
            .await
    }

    async fn help(
        &self,
        descriptor: &Descriptor,
        request: &ShellRequest,
        arguments: &[String],
    ) -> Result<ShellOutput, ApiError> {
        if request.stdin.is_some() || request.environment.is_some() {
            let message = "help takes no stdin and no environment".to_owned();
            return self.usage(descriptor, message).await;
        }
        let data = match arguments {
            [] => {
                let commands: Vec<_> = COMMANDS.iter().map(Descriptor::describe).collect();
                json!({ "commands": commands })
            }
            [name] => {
                let Some(found) = find(name) else {
                    let message = format!("there is no command {name:?}");
                    return self.usage(descriptor, message).await;
                };
                json!({ "commands": [found.describe()] })
            }
            [_, _, ..] => {
                return self
                    .usage(descriptor, "one command at most".to_owned())
                    .await;
            }
        };
        self.finish(descriptor, 0, data, Vec::new()).await
    }

    async fn exec(
        &self,
        descriptor: &Descriptor,
        request: &ShellRequest,
        arguments: &[String],
    ) -> Result<ShellOutput, ApiError> {
        let argv = match arguments {
            [dashes, argv @ ..] if dashes == "--" && !argv.is_empty() => argv.to_vec(),
            _ => {
                let message = "the command stands after --".to_owned();
                return self.usage(descriptor, message).await;
            }
        };
        let run = ExecRequest {
            cwd: request.cwd.clone(),
            env: request.environment.clone().unwrap_or_default(),
            stdin: request.stdin.clone(),
            ..ExecRequest::of(argv, LimitsRequest::default())
        };
        let collected = match start_run(self.app, self.principal, run, Answer::AtItsEnd).await {
            Ok(handle) => wait_or_cancel(self.app, handle).await,
            Err(error) => Err(error),
        };
        match collected {
            Ok(result) => {
                let data = serde_json::to_value(result.as_ref()).map_err(ApiError::internal)?;
                Ok(ShellOutput {
                    exit_code: exit_code_of(&result),
                    data,
                    audit_id: result.audit_id.clone().unwrap_or_default(),
                    denial: None,
                    diagnostics: Vec::new(),
                })
            }
            Err(error) => self.refused(descriptor, error).await,
        }
    }

    async fn refused(
        &self,
        descriptor: &Descriptor,
        error: ApiError,
    ) -> Result<ShellOutput, ApiError> {
        let exit_code = match error.kind {
            ErrorKind::InvalidInput | ErrorKind::Refused | ErrorKind::TooLarge => USAGE,
            ErrorKind::NotFound
            | ErrorKind::Conflict
            | ErrorKind::Busy
            | ErrorKind::Unavailable
            | ErrorKind::Denied => FAILED,
            ErrorKind::Unauthenticated | ErrorKind::Method | ErrorKind::Internal => {
                return Err(error);
            }
        };
        let diagnostic = Diagnostic {
            code: error.code,
            message: error.message,
        };
        self.finish(descriptor, exit_code, Value::Null, vec![diagnostic])
            .await
    }
}

fn exit_code_of(result: &ExecResult) -> u8 {
    match result.outcome {
        Outcome::Exited if result.exit_code == Some(0) => 0,
        Outcome::TimedOut | Outcome::IdleTimedOut => TIMED_OUT,
        Outcome::Cancelled => CANCELLED,
        Outcome::Exited
        | Outcome::Signaled
        | Outcome::OutOfMemory
        | Outcome::Limit
        | Outcome::Lost => FAILED,
    }
}
