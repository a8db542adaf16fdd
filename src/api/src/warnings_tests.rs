//! Failures are logged up to the limit, then counted.

use std::fmt;
use std::sync::Arc;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::*;

/// Collects the messages of warnings.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<String>>>);

impl Collector {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut Message(&mut self.0.lock().unwrap()));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Message<'a>(&'a mut Vec<String>);

impl Visit for Message<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0.push(format!("{value:?}"));
        }
    }
}

/// Lets this much of the paused clock's time pass, without waiting.
async fn pass(time: Duration) {
    assert!(tokio::time::timeout(time, std::future::pending::<()>()).await.is_err());
}

#[test]
fn further_failures_are_counted_and_reported_once() {
    static LIMIT: WarningLimit = WarningLimit::new();
    let collector = Collector::default();
    let _collecting = tracing::subscriber::set_default(collector.clone());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        for round in ["first", "second"] {
            for _ in 0..1000 {
                LIMIT.log_failure(round);
            }
            assert_eq!(collector.take(), vec![format!("call failed: {round}"); MAX_WARNINGS as usize]);
            // Longer than the interval, so that the number is logged first.
            pass(2 * INTERVAL).await;
            assert_eq!(collector.take(), ["990 more calls failed within 10 s; debug logging shows each"]);
        }
        LIMIT.log_failure("last");
        pass(2 * INTERVAL).await;
        assert_eq!(collector.take(), ["call failed: last"], "no number without suppressed warnings");
    });
}
