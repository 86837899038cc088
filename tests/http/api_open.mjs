// api_open.mjs: a server without authentication, and HTTP itself.
import net from 'node:net'
import { Judged, api, check, id, options, plan, same, test } from './harness.mjs'

const client = new Judged('')
const at = new URL(options.url)

// The bytes that come back on a connection of its own, until it ends or `ms` pass.
const raw = (text, ms = 2000) => new Promise((resolve) => {
  const socket = net.connect(Number(at.port), at.hostname)
  let got = ''
  const timer = setTimeout(() => socket.destroy(), ms)
  socket.on('data', (part) => { got += part })
  socket.on('close', () => { clearTimeout(timer); resolve(got) })
  socket.on('error', () => {})
  socket.write(text)
})

test('everybody on this machine is anonymous of all tenants', async () => {
  const me = await client.must(200, 'GET', '/v1/me')
  same([me.name, me.tenantId], ['anonymous', '*'])
  const ref = await client.must(201, 'POST', '/v1/plans', plan(id('plan'), [{ stepId: 'a', type: 'noop' }]))
  same((await client.must(201, 'POST', '/v1/runs', { planRef: ref })).tenantId, 'default')
  await client.must(200, 'GET', '/metrics')
})
// WE-3.2-1: a server for development takes the plan itself; tests/http/api_runs.mjs has one that does not.
test('start: with the plan itself', async () => {
  const inline = plan(id('plan'), [{ stepId: 'a', type: 'noop' }])
  const answer = await client.post('/v1/runs', { plan: inline, context: { tenantId: 'default' } }, [['Prefer', 'wait=20']])
  same([answer.status, answer.json.status], [201, 'COMPLETED'])
  same((await client.must(200, 'GET', `/v1/runs/${answer.json.runId}`)).planId, inline.metadata.planId)
  const runId = answer.json.runId
  same((await client.must(200, 'POST', '/v1/runs', { plan: inline, context: { tenantId: 'default', runId } })).existing, true)
  await client.refused(400, 'FIELD_MISSING', 'POST', '/v1/runs', {}, [], '/planRef')
  const ref = await client.must(200, 'POST', '/v1/plans', inline)
  await client.refused(400, 'FIELD_UNKNOWN', 'POST', '/v1/runs', { plan: inline, planRef: ref }, [], '/plan')
  await client.refused(422, 'PLAN_INVALID', 'POST', '/v1/runs', { plan: { ...inline, steps: [{ stepId: 'a', type: 'noop', frobnicate: 1 }] } }, [], '/plan/steps/0/frobnicate')
})
test('a name that leads here is not enough: 421', async () => {
  for (const host of ['evil.example', 'evil.example:80', '10.0.0.1', 'localhost.evil.example', '127.evil.example', '127.0.0.1.evil.example', '[::2]', '1127.0.0.1', '[::1].evil.example']) await client.refused(421, 'MISDIRECTED_REQUEST', 'GET', '/v1/runs', undefined, [['Host', host]], '#Host')
  for (const host of ['localhost', 'LOCALHOST:80', '127.0.0.1:1', '127.1.2.3', '[::1]:8420', `localhost:${at.port}`]) await client.must(200, 'GET', '/v1/runs', undefined, [['Host', host]])
})
test('a page of another site is refused: 403, and no CORS headers', async () => {
  for (const origin of ['http://evil.example', 'https://localhost.evil.example', 'null', 'http://127.0.0.1.evil.example', 'http://127.evil.example', 'http://evil.example/://localhost', 'http://localhost@evil.example', 'file://', 'localhost', 'http://[::1].evil.example', 'http://LOCALHOST.evil:80']) {
    const answer = await client.refused(403, 'ORIGIN_NOT_ALLOWED', 'POST', '/v1/tasks/poll', { queue: 'q', worker: 'w' }, [['Origin', origin]], '#Origin')
    check(Object.keys(answer.headers).every((n) => !n.startsWith('access-control-')), JSON.stringify(answer.headers))
  }
  for (const origin of ['http://localhost:3000', 'http://127.0.0.1', 'http://[::1]:99']) await client.must(200, 'GET', '/v1/runs', undefined, [['Origin', origin]])
})
test('HEAD is GET without the body', async () => {
  for (const path of ['/livez', '/v1/me', '/openapi.json', '/v1/runs']) {
    const get = await client.get(path)
    const head = await client.send('HEAD', path)
    same([head.status, head.body.length, head.headers['content-length'], head.headers['content-type']], [get.status, 0, get.headers['content-length'], get.headers['content-type']], path)
  }
})
test('other methods are 405, with those that are there', async () => {
  const all = new Map()
  for (const { path, method } of api.operations) all.set(path, [...(all.get(path) ?? []), method])
  for (const [path, methods] of all) {
    const target = path.replace(/\{[^}]+\}/g, 'x')
    for (const method of ['PUT', 'OPTIONS']) {
      const answer = await client.refused(405, 'METHOD_NOT_ALLOWED', method, target)
      const want = methods.flatMap((m) => (m === 'GET' ? ['GET', 'HEAD'] : [m])).sort()
      const got = answer.headers.allow.split(', ').sort()
      // /v1/plans/validate is also a plan's hash by its look, and /v1/effects/requeue an effect's id
      check(want.every((m) => got.includes(m)) && (['/v1/plans/validate', '/v1/effects/requeue'].includes(target) || got.length === want.length), `${path}: ${got} instead of ${want}`)
    }
  }
})
test('other paths are 404', async () => {
  for (const path of ['/', '/v1', '/v1/', '/v2/runs', '/v1/runs/', '/v1/runs//events', '/v1/RUNS', '/v1/runs/x/y/z', '/v1/runs/%ff', '/v1/runs/a%00b']) await client.refused(404, 'ROUTE_NOT_FOUND', 'GET', path)
})
test('HTTP/1.0 is answered, and the connection ends', async () => {
  const answer = await raw('GET /livez HTTP/1.0\r\nHost: localhost\r\n\r\n')
  check(/^HTTP\/1\.[01] 200 /.test(answer), answer)
  check(answer.endsWith('{"status":"ok"}'), answer)
  const kept = await raw('GET /livez HTTP/1.0\r\n\r\n')
  check(/^HTTP\/1\.[01] (200|400) /.test(kept), kept)
})
test('several requests at once on one connection are answered in order', async () => {
  const one = (path, more = '') => `GET ${path} HTTP/1.1\r\nHost: localhost\r\n${more}\r\n`
  const answer = await raw(one('/livez') + one('/v1/nothing') + one('/v1/me') + one('/livez', 'Connection: close\r\n'))
  same([...answer.matchAll(/HTTP\/1\.1 (\d+)/g)].map((m) => m[1]), ['200', '404', '200', '200'])
})
test('what is not HTTP is answered with a problem, and the connection ends', async () => {
  for (const text of ['nonsense\r\n\r\n', 'GET / HTTP/1.1\r\n\r\n', 'GET / HTTP/2.0\r\nHost: x\r\n\r\n', 'GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n']) {
    const answer = await raw(text)
    check(/^HTTP\/1\.1 (400|505) /.test(answer) && /"code":"HTTP_/.test(answer), `${JSON.stringify(text)}: ${answer}`)
  }
})
test('every answer has an X-Request-Id of its own', async () => {
  const ids = new Set()
  for (let i = 0; i < 5; i++) ids.add((await client.get('/livez')).headers['x-request-id'])
  same(ids.size, 5)
})
