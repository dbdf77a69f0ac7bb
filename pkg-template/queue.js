import { unlessAborted } from "./abort.js";

/** One holder at a time, in the order of asking. */
export class Queue {
  #last = Promise.resolve();

  /** Waits for its turn and resolves to the function that ends it. A turn whose signal aborts is given up. */
  async enter(signal) {
    const before = this.#last;
    let leave;
    const turn = new Promise((resolve) => (leave = resolve));
    this.#last = before.then(() => turn);
    try {
      await (signal ? unlessAborted(before, signal) : before);
    } catch (reason) {
      leave();
      throw reason;
    }
    return leave;
  }
}
