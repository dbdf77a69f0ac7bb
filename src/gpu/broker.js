// Adds to the one `requestDevice` call that wgpu makes the features that its browser backend cannot name.
// The caller gives `GPUAdapter.prototype.requestDevice` back right after that call.
export function lendRequestDevice(wanted) {
  const prototype = globalThis.GPUAdapter.prototype;
  const original = prototype.requestDevice;
  const loan = {
    granted: [],
    subgroupMinSize: 0,
    isFallbackAdapter: false,
    giveBack() {
      prototype.requestDevice = original;
    },
  };
  prototype.requestDevice = function (descriptor = {}) {
    loan.granted = wanted.filter((feature) => this.features.has(feature));
    loan.subgroupMinSize = this.info?.subgroupMinSize ?? 0;
    loan.isFallbackAdapter = this.info?.isFallbackAdapter ?? false;
    const requiredFeatures = [...new Set([...(descriptor.requiredFeatures ?? []), ...loan.granted])];
    return original.call(this, { ...descriptor, requiredFeatures });
  };
  return loan;
}

// Resolves after about `milliseconds`; below one it is the next task, since timers are clamped to four.
export function pause(milliseconds) {
  return new Promise((resolve) => {
    if (milliseconds >= 4) {
      setTimeout(resolve, milliseconds);
      return;
    }
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      resolve();
    };
    port2.postMessage(0);
  });
}
