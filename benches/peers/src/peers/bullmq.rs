//! BullMQ on Redis: its producer and its worker are scripts of `node/`.

use super::About;
use crate::works::Work;

const SETTINGS: &str = "removeOnComplete (its default keeps all, for ever); drain and mixed: concurrency 200 (100 for \
                        each of two queues, 500 for each of four workers); pick-up: concurrency 4";

pub(super) const EVERYSEC: About = About {
    history: "deleted",
    fence: "a lock's token, which expires",
    synced: "once a second",
    settings: SETTINGS,
};

pub(super) const ALWAYS: About = About { synced: "each reply", ..EVERYSEC };

pub(super) const fn concurrency(work: Work) -> usize {
    match work {
        Work::Pickup => 4,
        Work::DrainTwoQueues => 100,
        Work::DrainFourWorkers => 500,
        _ => 200,
    }
}
