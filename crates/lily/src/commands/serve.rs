//! `lily serve`: a model behind HTTP, from the socket to the last answer.

use crate::cli::{ReasoningName, ServeArgs};
use crate::clients::{self, Client};
use crate::failure::Failure;
use crate::load::{ModelArgs, open};
use crate::model::Model;
use crate::output;
use lily_api::encode::ReasoningField;
use lily_engine::cache::CacheOptions;
use lily_engine::engine::Engine;
use lily_engine::scheduler::SchedulerOptions;
use lily_server::{ApiKey, ServedModel, Server, ServerOptions};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Threads that serve connections; what computes has its own.
const HTTP_THREADS: usize = 2;
/// Longest context unless asked for, in tokens: room for an agent's instructions and some work.
const CONTEXT_TOKENS: usize = 32_768;
/// The exit code of a second Ctrl-C.
const INTERRUPTED: i32 = 130;

/// Runs the command.
pub fn run(mut args: ServeArgs) -> Result<(), Failure> {
    args.model = ModelArgs { model: args.name.take().or(args.model.model) };
    if let Some(client) = args.print_config {
        return print_config(&args, client);
    }
    let address = address(&args)?;
    tracing_subscriber::fmt()
        .with_max_level(args.log)
        .with_writer(std::io::stderr)
        .with_ansi(output::stderr_is_colored())
        .init();
    lily_server::log_panics();
    let model = args.model.resolve()?;
    args.model.introduce(&model);
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(HTTP_THREADS).enable_all().build();
    let runtime = runtime.map_err(|e| Failure::other(format_args!("cannot start the server's threads: {e}")))?;
    let result = runtime.block_on(serve(args, model, address));
    runtime.shutdown_background(); // a model that is still loading is nobody's any more
    result
}

/// Prints what makes a client talk to the server that these arguments start.
fn print_config(args: &ServeArgs, client: Client) -> Result<(), Failure> {
    if args.port == 0 {
        return Err(Failure::usage(
            "--print-config: port 0 is whichever is free when the server starts, so no settings can have it; give --port the \
             one that the server will have",
        ));
    }
    let model = args.model.resolve()?;
    let limit = open(&model)?.weights.shape.max_context_tokens;
    let ip = if args.host == "localhost" { "127.0.0.1" } else { args.host.as_str() };
    let reachable = match ip.trim_matches(['[', ']']).parse::<IpAddr>() {
        Ok(ip) if ip.is_unspecified() => "127.0.0.1".to_owned(),
        Ok(IpAddr::V6(ip)) => format!("[{ip}]"),
        _ => ip.to_owned(),
    };
    let server = clients::Address {
        host: reachable,
        port: args.port,
        model: model.short_name(),
        context_tokens: context_tokens(args, limit),
        key: args.api_key.is_some(),
    };
    output::note(&client.advice());
    output::write(&client.config(&server))
}

/// The context to serve with, of a model that was made for `limit` tokens.
fn context_tokens(args: &ServeArgs, limit: usize) -> usize {
    args.engine.context.unwrap_or(CONTEXT_TOKENS.min(limit))
}

/// Where to listen; not beyond this machine without a key.
fn address(args: &ServeArgs) -> Result<SocketAddr, Failure> {
    let host = if args.host == "localhost" { "127.0.0.1" } else { args.host.trim_matches(['[', ']']) };
    let ip: IpAddr = host.parse().map_err(|_| {
        Failure::usage(format_args!("--host {}: expected an address, such as 127.0.0.1 or 0.0.0.0", args.host))
    })?;
    if !ip.is_loopback() && args.api_key.is_none() && !args.insecure {
        return Err(Failure::usage(format_args!(
            "--host {}: others than this machine could reach the server; give it a key (LILY_API_KEY or --api-key), or \
             --insecure to let everybody in",
            args.host
        )));
    }
    Ok(SocketAddr::new(ip, args.port))
}

async fn serve(args: ServeArgs, model: Model, address: SocketAddr) -> Result<(), Failure> {
    let listener = TcpListener::bind(address).await.map_err(|error| cannot_listen(address, &error))?;
    let address = listener.local_addr().map_err(|error| cannot_listen(address, &error))?;
    let signals = Signals::install()?;
    let server = Server::new(options(&args, &model));
    let running = tokio::spawn({
        let server = server.clone();
        async move { server.run(listener, signals.first()).await }
    });
    output::note(&format!("listening at http://{address}, loading the model"));
    let loading = tokio::task::spawn_blocking(move || load(&args, &model));
    tokio::pin!(running, loading);
    tokio::select! {
        loaded = &mut loading => server.serve_model(loaded.map_err(|e| Failure::other(format_args!("loading failed: {e}")))??),
        _ = &mut running => return Ok(()), // ended before it began
    }
    announce(address)?;
    match running.await {
        Ok(true) => output::note("ended: every answer was complete"),
        _ => output::note("ended: some answers were cut short"),
    }
    Ok(())
}

fn cannot_listen(address: SocketAddr, error: &std::io::Error) -> Failure {
    let advice = match error.kind() {
        ErrorKind::AddrInUse => {
            "; another program listens there: end it, or choose another port with --port (0 takes any)"
        }
        ErrorKind::AddrNotAvailable => "; this machine does not have that address: choose another with --host",
        ErrorKind::PermissionDenied => "; ports below 1024 may need rights: choose another with --port",
        _ => "",
    };
    Failure::other(format_args!("cannot listen at {address}: {error}{advice}"))
}

fn options(args: &ServeArgs, model: &Model) -> ServerOptions {
    let mut aliases = args.alias.clone();
    if let Model::Directory { origin: Some(origin), .. } = model {
        aliases.extend(origin.split(['@', ' ']).next().map(str::to_owned));
    }
    ServerOptions {
        aliases,
        api_key: args.api_key.clone().map(ApiKey::new),
        cors_origins: args.cors_origin.clone(),
        allowed_hosts: args.allow_host.clone(),
        reasoning_field: match args.reasoning_field {
            ReasoningName::ReasoningContent => ReasoningField::ReasoningContent,
            ReasoningName::Reasoning => ReasoningField::Reasoning,
            ReasoningName::Both => ReasoningField::Both,
            ReasoningName::None => ReasoningField::None,
        },
        explain_cache: args.explain_cache,
        ..ServerOptions::new(model.short_name())
    }
}

fn load(args: &ServeArgs, model: &Model) -> Result<ServedModel, Failure> {
    let checkpoint = open(model)?;
    let limit = checkpoint.weights.shape.max_context_tokens;
    let mut options = args.engine.options(limit)?;
    options.context_tokens = context_tokens(args, limit);
    options.sessions = args.sessions;
    options.cache = CacheOptions { bytes: args.cache_bytes, dir: args.cache_dir.clone(), ..CacheOptions::default() };
    let engine = Engine::new(checkpoint, &options)?;
    output::note(&format!("{}, context of {} tokens", engine.device(), options.context_tokens));
    Ok(ServedModel::start(engine, &SchedulerOptions { queue_jobs: args.queue })?)
}

/// Prints where to find the server, for people and for scripts.
fn announce(address: SocketAddr) -> Result<(), Failure> {
    let mut reachable = address;
    if address.ip().is_unspecified() {
        reachable.set_ip(if address.is_ipv4() { [127, 0, 0, 1].into() } else { [0, 0, 0, 0, 0, 0, 0, 1].into() });
    }
    output::note(&format!("ready; chat at http://{reachable}/"));
    let lines = format!("OPENAI_BASE_URL=http://{reachable}/v1\nANTHROPIC_BASE_URL=http://{reachable}\n");
    match output::write(&lines) {
        Err(failure) if failure.is_broken_pipe() => Ok(()), // nobody reads them, clients come all the same
        written => written,
    }
}

/// The signals that end the server.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn install() -> Result<Self, Failure> {
        let install = |kind| signal(kind).map_err(|e| Failure::other(format_args!("cannot handle signals: {e}")));
        Ok(Self { interrupt: install(SignalKind::interrupt())?, terminate: install(SignalKind::terminate())? })
    }

    /// Waits for the first signal; from then on Ctrl-C ends the process at once.
    async fn first(mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
        output::note("ending when the answers under way are complete; Ctrl-C ends at once");
        tokio::spawn(async move {
            if self.interrupt.recv().await.is_some() {
                std::process::exit(INTERRUPTED);
            }
        });
    }
}
