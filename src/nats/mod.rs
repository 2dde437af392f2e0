//! NATS: publish, pull, ack. The only place that names `async_nats`.
//!
//! JetStream is durable, fast, at-least-once delivery, and nothing more. Even if it loses every message, no job whose
//! row exists is lost.
//!
//! Not here: the meaning of a message (`deliver`), and the decision whether a job may run (`claim`).

mod answers;
mod connect;
mod given;
mod control;
mod inspect;
mod message;
mod publish;
mod together;
mod pull;
pub(crate) mod slots;
pub(crate) mod survey;
mod tls;
mod topology;
pub(crate) mod waiting;
mod written;

pub(crate) use async_nats::{Client, Subject};
pub use connect::{Nats, NatsError};
pub(crate) use control::{Announced, AskedToDrain, Control, Drains, Probed, announced_cancelled};
pub(crate) use inspect::{
    ConsumerSeen, Delivered, Limit, MessageSeen, NatsSeen, StreamCounts, StreamSeen, Unseen,
};
pub(crate) use message::{Delivery, Receipt};
pub(crate) use publish::{
    Confirmation, Confirmations, JOB_ID, Prepared, ReplyTo, Ticket, TicketBody, silence,
};
pub(crate) use pull::{LATE, Pull, PullConsumer, Pulled, is_job};
#[cfg(test)]
pub(crate) use topology::Place;
pub use topology::Progress;
pub(crate) use topology::{AHEAD, ASKED_AT_ONCE};
pub(crate) use written::WRITTEN_WITHIN;
