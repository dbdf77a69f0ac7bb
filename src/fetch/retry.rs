//! When a request that failed is made again.

use std::time::Duration;

use super::context::{FetchEvent, LoadContext};
use super::source::Fault;
use crate::error::{Code, Error, Result};

/// Failures in a row before the load gives up: with the delays below, that is after about a minute, which
/// a tunnel may take.
const MAX_FAILURES: u32 = 8;

/// The same while nothing has come from anywhere: the address may be wrong, or the server forbid the page to
/// read it, which looks the same.
const MAX_FIRST_FAILURES: u32 = 3;

const FIRST_DELAY: Duration = Duration::from_millis(500);
const LONGEST_DELAY: Duration = Duration::from_secs(30);

/// A server that wants to be left alone for longer than this is not waited for.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(120);

/// The failures in a row of one request.
pub(super) struct Retries<'a> {
    context: &'a LoadContext,
    file: &'a str,
    failures: u32,
}

impl<'a> Retries<'a> {
    pub(super) fn new(context: &'a LoadContext, file: &'a str) -> Self {
        Self { context, file, failures: 0 }
    }

    /// The request got somewhere before it failed.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }

    /// Waits until the request may be made again, or fails if it should not be.
    pub(super) async fn after(&mut self, fault: Fault) -> Result<()> {
        let (error, retry_after) = match fault {
            Fault::Passing { error, retry_after } => (error, retry_after.unwrap_or_default()),
            Fault::Changed(error) => {
                self.context.state.changed.set(true);
                return Err(error);
            }
            Fault::Lasting(error) => return Err(error),
        };
        self.failures += 1;
        let limit = if self.context.state.reached.get() { MAX_FAILURES } else { MAX_FIRST_FAILURES };
        if self.failures >= limit || retry_after > LONGEST_RETRY_AFTER {
            return Err(self.surrender(error, retry_after));
        }
        let delay = delay(self.failures, self.context.host.random()).max(retry_after);
        let (file, failures) = (self.file, self.failures);
        self.context.tell(FetchEvent::Retry { file, failures, delay, error: &error });
        self.context.host.sleep(delay).await;
        Ok(())
    }

    fn surrender(&self, last: Error, retry_after: Duration) -> Error {
        let failures = match self.failures {
            1 => "a failure".to_owned(),
            failures => format!("{failures} failures in a row, the last of which follows"),
        };
        let error = Error::new(Code::Network, format!("fetch {}", self.file)).because(last);
        if retry_after > LONGEST_RETRY_AFTER {
            let wait = retry_after.as_secs();
            return error
                .got(format!("{failures}, and the server wants to be asked again in {wait} s only"))
                .remedy("Load the model again later: what has arrived is kept.");
        }
        error.got(failures).remedy(
            "Check the connection and load the model again: what has arrived is kept, where there is a cache.",
        )
    }
}

/// How long to wait after so many failures: twice as long each time, less up to a half by chance (`random`
/// is from 0 to 1).
fn delay(failures: u32, random: f64) -> Duration {
    let factor = 1u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
    FIRST_DELAY.saturating_mul(factor).min(LONGEST_DELAY).mul_f64(0.5 + random.clamp(0.0, 1.0) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_a_bound_and_vary_by_half() {
        let longest: Vec<u128> = (1..10).map(|failures| delay(failures, 1.0).as_millis()).collect();
        assert_eq!(longest, [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000, 30_000]);
        assert_eq!(delay(2, 0.0), Duration::from_millis(500));
        assert_eq!(delay(2, 0.5), Duration::from_millis(750));
        assert_eq!(delay(u32::MAX, 1.0), LONGEST_DELAY);
        assert_eq!(delay(0, f64::INFINITY), FIRST_DELAY);
    }
}
