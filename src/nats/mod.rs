//! NATS: publish, pull, ack. The only place that names `async_nats`.
//!
//! JetStream is durable, fast, at-least-once delivery, and nothing more. Even if it loses every message, no job whose
//! row exists is lost.
//!
//! Not here: the meaning of a message (`deliver`), and the decision whether a job may run (`claim`).

#[cfg_attr(not(feature = "worker"), allow(dead_code, reason = "parts of it are a worker's"))]
mod connect;
mod given;
#[cfg_attr(not(feature = "worker"), allow(dead_code, reason = "parts of it are a worker's"))]
mod hints;
#[cfg(feature = "worker")]
mod hinter;
#[cfg_attr(not(feature = "worker"), allow(dead_code, reason = "parts of it are a worker's"))]
mod control;
mod inspect;
#[cfg_attr(not(feature = "worker"), allow(dead_code, reason = "parts of it are a worker's"))]
mod message;
#[cfg_attr(not(feature = "worker"), allow(dead_code, reason = "parts of it are a worker's"))]
mod publish;
mod together;
#[cfg(feature = "gateway")]
mod gateway;
#[cfg(feature = "worker")]
mod pull;
#[cfg(feature = "worker")]
pub(crate) mod slots;
pub(crate) mod survey;
mod tls;
#[cfg_attr(not(feature = "worker"), allow(dead_code, reason = "parts of it are a worker's"))]
mod topology;
pub(crate) mod waiting;
mod written;

pub(crate) use async_nats::Client;
#[cfg(feature = "worker")]
pub(crate) use async_nats::Subject;
pub use connect::{Nats, NatsError};
#[cfg(feature = "gateway")]
pub(crate) use control::announced_cancelled;
#[cfg(feature = "worker")]
pub(crate) use control::{Announced, AskedToDrain, Control, Drains, Probed};
#[cfg(feature = "gateway")]
pub(crate) use gateway::{Asked, CONFIRMED_WITHIN, LATE, ToGateway};
#[cfg(feature = "worker")]
pub(crate) use hinter::Hinter;
#[cfg(feature = "worker")]
pub(crate) use hints::WatchRequest;
pub(crate) use hints::{Hint, Hinted, WATCHED_FOR};
pub(crate) use inspect::{ConsumerSeen, Delivered, MessageSeen, NatsSeen, StreamCounts, StreamSeen, Unseen};
#[cfg(feature = "worker")]
pub(crate) use message::{Delivery, Receipt};
pub(crate) use publish::{Confirmation, Confirmations, Prepared, ReplyTo, Ticket, silence};
#[cfg(feature = "worker")]
pub(crate) use publish::{JOB_ID, TicketBody};
#[cfg(feature = "worker")]
pub(crate) use pull::{Pull, PullConsumer, Pulled};
#[cfg(feature = "worker")]
pub use topology::Progress;
pub(crate) use written::WRITTEN_WITHIN;
