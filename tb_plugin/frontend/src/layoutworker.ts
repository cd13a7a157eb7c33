// Where the worker that lays out graphs comes from: a file beside the page's code, or the page itself in a report.

let open = (): Worker => new Worker(new URL("./elk-worker.js", import.meta.url));

export function openWorker(): Worker {
  return open();
}

export function openWorkerBy(given: () => Worker): void {
  open = given;
}
