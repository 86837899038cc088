// api_drain.mjs: SIGTERM while a long poll, a wait, streams and a slow request are open. Each ends properly, within ten seconds.
import net from 'node:net'
import { Judged, Stream, check, event, id, options, pause, plan, same, test } from './harness.mjs'

const at = new URL(options.url)

// A request whose body comes slowly: it began before the end.
function slowRequest(body, ms) {
  const socket = net.connect(Number(at.port), at.hostname)
  let got = ''
  const done = new Promise((resolve) => socket.on('close', () => resolve(got)))
  socket.on('data', (part) => { got += part })
  socket.on('error', () => {})
  const half = Math.floor(body.length / 2)
  socket.write(`POST /v1/events HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\nContent-Length: ${body.length}\r\n\r\n${body.slice(0, half)}`)
  setTimeout(() => socket.write(body.slice(half)), ms)
  return done
}

test('SIGTERM: what is open ends properly, what is new is refused', async () => {
  const make = () => new Judged('')
  const setup = make()
  const ref = await setup.must(201, 'POST', '/v1/plans', plan(id('plan'), [{ stepId: 'hold', type: 'wait', signal: 'go' }]))
  const runId = id('run')
  await setup.must(201, 'POST', '/v1/runs', { planRef: ref, context: { runId } })
  const stream = new Stream(`/v1/runs/${runId}/events`)
  const lines = new Stream('/v1/events?tenantId=default', { accept: 'application/x-ndjson' })
  const poll = make().post('/v1/tasks/poll', { queue: 'q', worker: 'w', waitMs: 60000 })
  const wait = make().post('/v1/runs', { planRef: ref, context: { runId: id('waited') } }, [['Prefer', 'wait=60']])
  const slow = slowRequest(`${JSON.stringify(event('default', id('slow'), 'RunStarted'))}\n`, 1500)
  await stream.has(1)
  await lines.has(1)
  await pause(500)
  const begun = Date.now()
  process.kill(Number(options.pid), 'SIGTERM')
  const polled = await poll
  same([polled.status, polled.json], [200, { items: [] }])
  const waited = await wait
  same([waited.status, waited.json.status], [201, undefined])
  await stream.done
  await lines.done
  check(stream.complete && lines.complete && !stream.error, 'a stream was cut off')
  check(stream.records.every((r) => r.event !== 'end'), 'the run has not ended')
  const answer = await slow
  check(/^HTTP\/1\.1 200 /.test(answer) && answer.includes('"runSeq":1'), `the slow request: ${answer || 'no answer'}`)
  check(Date.now() - begun < 10000, `${Date.now() - begun} ms`)
  const late = await new Promise((resolve) => {
    const socket = net.connect(Number(at.port), at.hostname)
    socket.on('connect', () => resolve('connected'))
    socket.on('error', (error) => resolve(error.code))
  })
  same(late, 'ECONNREFUSED')
})
