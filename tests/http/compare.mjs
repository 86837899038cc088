// compare.mjs: gives every case of corpus.json to Node's own HTTP server, as a second opinion.
//
// Both must take the same requests and refuse the rest. Where a case says "stricter" (and why), Node may take
// more than we do. Where it says "differs" (and why), both are safe. The numbers of the refusals (400, 431, ...) are free.
import { readFileSync } from 'node:fs';
import http from 'node:http';
import net from 'node:net';

const cases = JSON.parse(readFileSync(new URL('corpus.json', import.meta.url), 'utf8'));
const QUIET_MS = 2500; // no bytes for so long, on a busy machine: that was all

const server = http.createServer({ maxHeaderSize: 48 * 1024, keepAliveTimeout: 60000 }, (req, res) => {
  const socket = req.socket; // gone from `req` when the body is complete
  req.on('data', () => {});
  req.on('end', () => {
    counts.set(socket.remotePort, (counts.get(socket.remotePort) ?? 0) + 1);
    res.end(req.method === 'HEAD' ? undefined : 'ok');
  });
});
const counts = new Map();
server.maxHeadersCount = 0;

// (flat() opens the outer array only: a part is a string or [string, times].)
const rawOf = (raw) => Buffer.from([raw].flat(1)
  .map((part) => (typeof part === 'string' ? part : part[0].repeat(part[1]))).join(''), 'latin1');

function ask(test) {
  return new Promise((resolve) => {
    const socket = net.connect(server.address().port, '127.0.0.1');
    let text = '';
    let port = 0;
    let timer;
    const done = () => {
      clearTimeout(timer);
      socket.destroy();
      const statuses = [...text.matchAll(/HTTP\/1\.1 (\d\d\d) /g)].map((m) => Number(m[1]));
      resolve({ statuses: statuses.filter((s) => s >= 200), requests: counts.get(port) ?? 0 });
    };
    const later = () => { clearTimeout(timer); timer = setTimeout(done, QUIET_MS); };
    socket.on('connect', () => { port = socket.localPort; socket.write(rawOf(test.raw)); later(); });
    socket.on('data', (bytes) => { text += bytes.toString('latin1'); later(); });
    socket.on('close', done);
    socket.on('error', () => {});
  });
}

const refusal = (statuses) => statuses.some((s) => s >= 400);

server.listen(0, '127.0.0.1', async () => {
  const answers = await Promise.all(cases.map(ask));
  let agreed = 0, stricter = 0, differs = 0, wrong = 0;
  cases.forEach((test, i) => {
    const node = answers[i];
    const same = node.requests === test.requests && refusal(node.statuses) === refusal(test.status);
    if (same) agreed++;
    else if (test.stricter && test.requests <= node.requests) stricter++;
    else if (test.differs) differs++;
    else {
      wrong++;
      console.log(`${test.name}: we take ${test.requests} and say ${test.status}, ` +
        `Node ${process.version} takes ${node.requests} and says ${node.statuses}`);
    }
  });
  console.log(`${cases.length} cases: Node agrees with ${agreed}, is less strict with ${stricter}, differs in ${differs}; ${wrong} not explained`);
  process.exit(wrong ? 1 : 0);
});
