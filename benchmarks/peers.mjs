// The node peers: node --expose-gc peers.mjs p-queue|p-limit CONCURRENCY N  ->  one JSON line.
// They are looked for from the working directory on, and in NODE_PATH; exit code 42 says "not installed".
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const [name, concurrency, n] = [process.argv[2], +process.argv[3], +process.argv[4]];
const body = async () => {};

async function load() {
  try {
    const found = createRequire(process.cwd() + '/').resolve(name);
    return (await import(pathToFileURL(found))).default;
  } catch (error) {
    if (error.code === 'MODULE_NOT_FOUND' || error.code === 'ERR_MODULE_NOT_FOUND') process.exit(42);
    throw error;
  }
}

const Peer = await load();
const makers = {
  'p-queue': () => { const queue = new Peer({ concurrency }); return i => queue.add(() => body(i)); },
  'p-limit': () => { const limit = Peer(concurrency); return i => limit(body, i); },
};

async function run(jobs) {
  globalThis.gc?.();
  const before = process.cpuUsage();
  const add = makers[name]();
  const promises = new Array(jobs);
  for (let i = 0; i < jobs; i++) promises[i] = add(i);
  await Promise.all(promises);
  const { user, system } = process.cpuUsage(before);
  return { cpu: (user + system) / 1e6, us: (user + system) / jobs };
}

await run(2000);
console.log(JSON.stringify(await run(n)));
