//! Compose: makes the parts of a worker from its description. Nothing runs yet.

use std::sync::Arc;

use rand::distr::{Alphanumeric, SampleString};

use super::{
    attempt::{Attempts, Handlers},
    builder::WorkerBuilder,
    error::WorkerError,
    gateway::OwnGateway,
    life::Life,
    port,
};
use crate::{
    config::Config,
    deliver::{Deliver, DeliverSettings},
    logs::run::LogWriter,
    run::{heartbeat::Heartbeat, running::Running, settle::Settle, threads::Threads},
    steps::run::Recorder,
    store::Store,
    tags::run::TagCounts,
    watch::run::Hints,
};

impl<S: Send + Sync + 'static> Life<S> {
    pub(super) fn of(mut builder: WorkerBuilder<S>) -> Result<Self, WorkerError> {
        if let Some(error) = builder.error.take() {
            return Err(error);
        }
        let config = builder.tenure.config().clone();
        builder.kinds.settle_timing(&config.timing)?;
        check_that_it_runs_jobs(&builder)?;
        let hostname = hostname(&config)?;
        let worker_id = new_id(&hostname);

        let server = port::open(config.listen, &builder.health)?;
        // Not earlier: the measures register with the recorder that is installed by now.
        builder.kinds.measure();
        builder.kinds.surround(&builder.layers);
        let no_threads = |error| WorkerError::Threads(Arc::new(error));
        let threads = Threads::new(builder.handlers_on).map_err(no_threads)?;
        let hooks = builder.hooks.start(&worker_id, threads.handle()).map_err(no_threads)?;
        let queues = Arc::new(builder.queues.serve());
        if builder.makes_transactions {
            warn_of_few_connections(queues.total, builder.tenure.store());
        }
        let store = builder.tenure.store().clone();
        let nats = builder.tenure.nats().clone();
        let running = Running::default();
        let hints = Hints::new(&nats, queues.names());
        let timing = config.timing.clone();
        let heartbeat =
            Heartbeat::new(store.clone(), running.clone(), timing, worker_id.clone(), Some(hints.clone()));
        let deliver = Deliver::new(
            store.clone(),
            running.clone(),
            heartbeat.clone(),
            DeliverSettings {
                worker_id: worker_id.as_str().into(),
                worker_host: hostname.as_str().into(),
                prefix: config.subject_prefix.as_str().into(),
                payload_bytes_max: config.payload_bytes_max,
                unknown_kind_after: config.timing.unknown_kind_after,
                scan_every: config.timing.scan_every,
                slots: queues.slots.clone(),
                hooks: hooks.clone(),
            },
        );
        let handlers = Handlers {
            kinds: builder.kinds,
            state: builder.state,
            threads,
            cancel_grace: config.timing.cancel_grace,
            checkpoint_bytes_max: config.checkpoint_bytes_max,
            payload_bytes_max: config.payload_bytes_max,
            codecs: builder.tenure.codecs().clone(),
            store: store.clone(),
            heartbeat: heartbeat.clone(),
            recorder: Recorder::new(&store),
            logs: config.job_logs.then(|| LogWriter::new(&store)),
        };
        let attempts = Arc::new(Attempts {
            handlers,
            deliver,
            settle: Settle::new(
                store.clone(),
                worker_id.as_str().into(),
                hooks.clone(),
                Some(hints.clone()),
                TagCounts::new(store.clone(), &config.metric_tags),
            ),
            heartbeat,
            store: store.clone(),
            nats: nats.clone(),
            hints,
            queues: queues.clone(),
            worker_id: worker_id.clone(),
            trace_parent: config.trace_parent,
            health: builder.health.clone(),
            loses_first: builder.loses_first,
        });
        Ok(Self {
            gateway: OwnGateway::of(builder.is_gateway, &builder.tenure, &attempts),
            worker_id,
            hostname,
            config,
            store,
            nats,
            publications: builder.tenure.publications().clone(),
            recovery: builder.recovery,
            health: builder.health,
            hooks,
            queues,
            running,
            attempts,
            _server: server,
        })
    }
}

/// Returns an id that no other worker has, also on this host.
fn new_id(hostname: &str) -> String {
    let random = Alphanumeric.sample_string(&mut rand::rng(), 8).to_lowercase();
    format!("{hostname}-{}-{random}", std::process::id())
}

fn check_that_it_runs_jobs<S: Send + Sync + 'static>(builder: &WorkerBuilder<S>) -> Result<(), WorkerError> {
    // A gateway alone runs the jobs of others.
    let lacks = |nothing: bool| nothing && !builder.is_gateway;
    if lacks(builder.kinds.is_empty()) {
        return Err(WorkerError::Nothing("handler"));
    }
    if lacks(builder.queues.is_empty()) { Err(WorkerError::Nothing("queue")) } else { Ok(()) }
}

/// Logs that handlers may have to wait for connections.
fn warn_of_few_connections(slots: u32, store: &Store) {
    let (pool, is_given) = store.handlers();
    let handler_connections = pool.options().get_max_connections();
    let setting = if is_given { "max_connections of the given pool" } else { "TENURE_HANDLER_CONNECTIONS" };
    if slots > handler_connections {
        tracing::info!(
            slots,
            handler_connections,
            "more slots than connections for handlers' transactions: when all are in use, `once` and `fenced_tx` \
             wait for one; if your handlers call them, raise {setting}"
        );
    }
}

fn hostname(config: &Config) -> Result<String, WorkerError> {
    if let Some(name) = &config.hostname {
        return Ok(name.clone());
    }
    hostname::get().ok().and_then(|name| name.into_string().ok()).ok_or(WorkerError::Hostname)
}
