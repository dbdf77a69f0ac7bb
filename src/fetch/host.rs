//! What a load asks of the platform below it, beside files and stores.

use std::any::Any;
use std::time::Duration;

use futures_util::future::{FutureExt, LocalBoxFuture, ready};

/// Held while something is locked; dropping it unlocks.
pub type Lock = Box<dyn Any>;

/// The platform: a browser's page or worker, a native program, or a test that plays one.
///
/// Everything but time has a default for platforms that lack it.
pub trait Host {
    /// Lets `time` pass.
    fn sleep(&self, time: Duration) -> LocalBoxFuture<'static, ()>;

    /// Milliseconds since 1970.
    fn now(&self) -> u64;

    /// A number from 0 to 1, so that clients which failed together do not come back together.
    fn random(&self) -> f64 {
        1.0
    }

    /// Whether it is certain that there is no network.
    fn is_offline(&self) -> bool {
        false
    }

    /// Waits for the lock `name`, which all pages of an origin share. `None` where there are no locks.
    fn lock(&self, _name: &str) -> LocalBoxFuture<'static, Option<Lock>> {
        ready(None).boxed_local()
    }

    /// Bytes that the store has room for, where that can be told.
    fn free_bytes(&self) -> LocalBoxFuture<'static, Option<u64>> {
        ready(None).boxed_local()
    }

    /// Asks that what is stored be kept when the disk fills up. Nobody waits for the answer, which may be
    /// a person's.
    fn persist(&self) {}
}

#[cfg(not(target_arch = "wasm32"))]
pub use native::NativeHost as DefaultHost;

#[cfg(not(target_arch = "wasm32"))]
mod native {
    use std::time::{SystemTime, UNIX_EPOCH};

    use super::*;

    /// A native program. Its sleep blocks, as native sources and stores do.
    #[derive(Clone, Copy, Debug, Default)]
    pub struct NativeHost;

    impl Host for NativeHost {
        fn sleep(&self, time: Duration) -> LocalBoxFuture<'static, ()> {
            async move { std::thread::sleep(time) }.boxed_local()
        }

        fn now(&self) -> u64 {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
        }
    }
}

#[cfg(target_arch = "wasm32")]
pub use browser::BrowserHost as DefaultHost;

#[cfg(target_arch = "wasm32")]
mod browser {
    use wasm_bindgen::prelude::*;

    use super::*;

    #[wasm_bindgen(module = "/src/fetch/host.js")]
    extern "C" {
        #[wasm_bindgen(js_name = sleep)]
        async fn pause(milliseconds: f64);
        #[wasm_bindgen(js_name = isOffline)]
        fn is_offline() -> bool;
        #[wasm_bindgen(js_name = freeBytes)]
        async fn free_bytes() -> JsValue;
        fn persist();

        type SharedLock;
        #[wasm_bindgen(constructor)]
        fn new() -> SharedLock;
        #[wasm_bindgen(method)]
        async fn acquire(this: &SharedLock, name: &str) -> JsValue;
        #[wasm_bindgen(method)]
        fn release(this: &SharedLock);
    }

    /// Gives the lock back, or the place in its queue.
    struct Release(SharedLock);

    impl Drop for Release {
        fn drop(&mut self) {
            self.0.release();
        }
    }

    /// A page or a worker.
    #[derive(Clone, Copy, Debug, Default)]
    pub struct BrowserHost;

    impl Host for BrowserHost {
        fn sleep(&self, time: Duration) -> LocalBoxFuture<'static, ()> {
            pause(time.as_millis() as f64).boxed_local()
        }

        fn now(&self) -> u64 {
            js_sys::Date::now() as u64
        }

        fn random(&self) -> f64 {
            js_sys::Math::random()
        }

        fn is_offline(&self) -> bool {
            is_offline()
        }

        fn lock(&self, name: &str) -> LocalBoxFuture<'static, Option<Lock>> {
            let name = format!("jird: {name}");
            async move {
                let lock = Release(SharedLock::new());
                lock.0.acquire(&name).await.is_truthy().then(|| Box::new(lock) as Lock)
            }
            .boxed_local()
        }

        fn free_bytes(&self) -> LocalBoxFuture<'static, Option<u64>> {
            async { free_bytes().await.as_f64().map(|bytes| bytes as u64) }.boxed_local()
        }

        fn persist(&self) {
            persist();
        }
    }
}
