// api_streams.mjs: live streams: server-sent events and NDJSON.
import { Stream, check, event, id, ndjson, pause, same, test, until } from './harness.mjs'
import { acme, events, held, other, quick, root, run, start } from './world.mjs'

const { producer, viewer, operator } = acme
const key = acme.keys.viewer
const of = (runId, type, more) => event(acme.name, runId, type, more)
const append = async (...list) => check((await producer.lines('/v1/events', ndjson(list))).lines.every((l) => l.eventId), 'refused')
const seqs = (records) => records.filter((r) => r.event !== 'end').map((r) => Number(r.id))
const upTo = (n, from = 1) => Array.from({ length: n - from + 1 }, (_, i) => from + i)
const steps = (runId, from, to) => upTo(to, from).map((n) => of(runId, 'StepStarted', { stepId: `s${n}` }))

test('SSE of a run: what is there, then what comes, then its end', async () => {
  const runId = await start(held)
  const stream = new Stream(`/v1/runs/${runId}/events`, { key })
  await stream.has(1)
  same([stream.status, stream.headers['content-type'].split(';')[0], stream.headers['cache-control']], [200, 'text/event-stream', 'no-store'])
  await operator.must(202, 'POST', `/v1/runs/${runId}/signals`, { signal: 'go' })
  const records = await stream.end()
  const stored = await events(runId)
  same(records.at(-1), { id: String(stored.length), event: 'end', data: { runId, status: 'COMPLETED' } })
  same(records.slice(0, -1).map((r) => r.data), stored)
  same(seqs(records), upTo(stored.length))
  check(records.slice(0, -1).every((r) => r.event === r.data.eventType), 'event names')
})
// RE-1.3-4, RE-1.3-5: a consumer that stops anywhere and comes again with its watermark resumes at the first record after it; the watermark follows
// runSeq, whatever emittedAt says.
test('SSE of a run: resumed anywhere, no gap and nothing twice', async () => {
  const runId = id('resumed')
  await append(of(runId, 'RunStarted', { emittedAt: '2026-03-01T00:00:00Z' }))
  const whole = []
  let appended = 1
  let last = 0
  for (let round = 0; round < 6; round++) {
    const headers = last > 0 ? { 'Last-Event-ID': String(last) } : {}
    const stream = new Stream(`/v1/runs/${runId}/events`, { key, headers })
    const times = ['2026-02-16T08:00:00Z', '2026-01-01T00:00:00Z', '2026-02-20T00:00:00Z']
    await append(...steps(runId, appended + 1, appended + 3).map((e, i) => ({ ...e, emittedAt: times[i] })))
    appended += 3
    const enough = round % 2 === 0 ? 1 : appended - last // leave in the middle, or after everything
    const got = (await stream.has(enough)).slice(0, enough)
    stream.leave()
    whole.push(...got)
    last = Number(got.at(-1).id)
  }
  await append(of(runId, 'RunCompleted'))
  const rest = new Stream(`/v1/runs/${runId}/events`, { key, headers: { 'Last-Event-ID': String(last) } })
  whole.push(...(await rest.end()))
  same(seqs(whole), upTo(appended + 1))
  same(whole.slice(0, -1).map((r) => r.data.eventId), (await events(runId)).map((e) => e.eventId))
})
test('SSE of a run: Last-Event-ID goes before after; both count', async () => {
  const runId = id('after')
  await append(of(runId, 'RunStarted'), ...steps(runId, 2, 9), of(runId, 'RunCompleted'))
  same(seqs(await new Stream(`/v1/runs/${runId}/events?after=7`, { key }).end()), [8, 9, 10])
  same(seqs(await new Stream(`/v1/runs/${runId}/events?after=2`, { key, headers: { 'Last-Event-ID': '8' } }).end()), [9, 10])
  await viewer.refused(400, 'HEADER_INVALID', 'GET', `/v1/runs/${runId}/events`, undefined, [['Accept', 'text/event-stream'], ['Last-Event-ID', 'x']], '#Last-Event-ID')
})
test('SSE of a run: coming again after its end is 204', async () => {
  const runId = await start(quick)
  const first = await new Stream(`/v1/runs/${runId}/events`, { key }).end()
  const again = new Stream(`/v1/runs/${runId}/events`, { key, headers: { 'Last-Event-ID': first.at(-2).id } })
  await again.end()
  same([again.status, again.text], [204, ''])
})
test('NDJSON of a run: the records, and nothing else', async () => {
  const runId = await start(held)
  const stream = new Stream(`/v1/runs/${runId}/events`, { key, accept: 'application/x-ndjson' })
  await stream.has(1)
  await operator.must(202, 'POST', `/v1/runs/${runId}/cancel`)
  const records = (await stream.end()).filter((r) => r.eventId)
  same(records, await events(runId))
})
test('follow=false ends at what is there', async () => {
  const runId = await start(held)
  await until('it waits', async () => (await run(runId)).openSteps === 1)
  const stored = await events(runId)
  const stream = await new Stream(`/v1/runs/${runId}/events?follow=false`, { key }).end()
  same(seqs(stream), upTo(stored.length))
  const lines = await new Stream(`/v1/runs/${runId}/events?follow=false`, { key, accept: 'application/x-ndjson' }).end()
  same(lines.filter((r) => r.eventId), stored)
})
test('the feed: all of the tenant, in order, without a gap, and nobody else', async () => {
  const stream = new Stream('/v1/events', { key })
  await stream.has(1)
  const runId = id('fed')
  await other.producer.lines('/v1/events', ndjson([event(other.name, id('theirs'), 'RunStarted')]))
  for (let i = 0; i < 5; i++) await append(...(i === 0 ? [of(runId, 'RunStarted')] : steps(runId, i * 2, i * 2 + 1)))
  const started = await start(quick)
  await until('all is there', () => stream.records.some((r) => r.data.runId === started && r.data.eventType === 'RunCompleted'))
  const got = stream.records
  stream.leave()
  same(seqs(got), upTo(got.length))
  check(got.every((r) => r.data.tenantId === acme.name && r.data.sequenceNumber === Number(r.id)), 'of another tenant')
  same(got.filter((r) => r.data.runId === runId).length, 9)
})
test('the feed: resumed with Last-Event-ID', async () => {
  const n = (await viewer.pages('/v1/events', 1000)).length
  const stream = new Stream('/v1/events', { key, headers: { 'Last-Event-ID': String(n - 3) } })
  const got = await stream.has(3)
  stream.leave()
  same(seqs(got).slice(0, 3), [n - 2, n - 1, n])
})
test('a stream that one node writes to is seen by many readers alike', async () => {
  const runId = id('many')
  await append(of(runId, 'RunStarted'))
  const streams = Array.from({ length: 20 }, (_, i) => new Stream(`/v1/runs/${runId}/events`, { key, accept: i % 2 ? 'application/x-ndjson' : 'text/event-stream' }))
  for (let i = 2; i < 40; i += 2) await append(...steps(runId, i, i + 1))
  await append(of(runId, 'RunCompleted'))
  const want = (await events(runId)).map((e) => e.eventId)
  for (const s of streams) same((await s.end()).map((r) => (r.data ?? r).eventId).filter(Boolean), want)
})
test('who may follow, and in which form', async () => {
  const runId = await start(held)
  const sse = [['Accept', 'text/event-stream']]
  await other.viewer.refused(404, 'RUN_NOT_FOUND', 'GET', `/v1/runs/${runId}/events`, undefined, sse)
  await viewer.refused(404, 'TENANT_NOT_FOUND', 'GET', `/v1/events?tenantId=${other.name}`, undefined, sse)
  await acme.worker.refused(403, 'FORBIDDEN', 'GET', '/v1/events', undefined, sse)
  await root.refused(400, 'PARAMETER_MISSING', 'GET', '/v1/events', undefined, sse)
  await viewer.refused(406, 'NOT_ACCEPTABLE', 'GET', `/v1/runs/${runId}/events`, undefined, [['Accept', 'image/png']])
  for (const accept of ['*/*', 'application/*', 'text/event-stream;q=0.1, application/json', 'application/x-ndjson;q=0.4, */*;q=0.5', 'text/*;q=0, */*']) {
    const page = await viewer.get(`/v1/runs/${runId}/events`, [['Accept', accept]])
    same(page.headers['content-type'], 'application/json', accept)
  }
  for (const accept of ['text/*', 'text/event-stream, application/json;q=0.9', '*/*;q=0.1, text/event-stream']) {
    const stream = new Stream(`/v1/runs/${runId}/events?follow=false`, { key, accept })
    await stream.done
    same(stream.headers['content-type'].split(';')[0], 'text/event-stream', accept)
  }
  const head = await viewer.send('HEAD', `/v1/runs/${runId}/events`, undefined, sse)
  same([head.status, head.body.length], [200, 0])
})
test('a key that is revoked while it follows', async () => {
  const made = await acme.admin.must(201, 'POST', '/v1/keys', { name: 'x', roles: ['viewer'] })
  const runId = await start(held)
  const stream = new Stream(`/v1/runs/${runId}/events`, { key: made.key })
  await stream.has(1)
  same((await acme.admin.send('DELETE', `/v1/keys/${made.keyId}`)).status, 204)
  await stream.end() // where it stands: without an end event
  check(stream.records.every((r) => r.event !== 'end'), 'the run has not ended')
  const again = new Stream(`/v1/runs/${runId}/events`, { key: made.key })
  await again.done
  same(again.status, 401)
})
test('a key whose roles change, or whose time is over, while it follows', async () => {
  const made = await acme.admin.must(201, 'POST', '/v1/keys', { name: 'x', roles: ['viewer'], expiresAt: new Date(Date.now() + 2500).toISOString() })
  const short = new Stream('/v1/events', { key: made.key })
  await short.has(1)
  const lasting = await acme.admin.post('/v1/keys', { name: 'y', roles: ['viewer'] })
  const changed = new Stream('/v1/events', { key: lasting.json.key })
  const bystander = new Stream('/v1/events', { key })
  await changed.has(1)
  await bystander.has(1)
  same((await acme.admin.send('PATCH', lasting.headers.location, { roles: ['worker'] }, [['If-Match', lasting.headers.etag]])).status, 200)
  await changed.end()
  await short.end()
  check(!bystander.ended, 'somebody else was ended, too')
  bystander.leave()
})
