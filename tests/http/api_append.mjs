// api_append.mjs: the Append Authority over HTTP.
import { randomUUID } from 'node:crypto'
import { Judged, check, event, id, ndjson, same, test } from './harness.mjs'
import { acme, events, other, root, run } from './world.mjs'

const { producer, viewer } = acme
const of = (runId, type, more) => event(acme.name, runId, type, more)
const append = (e, headers) => producer.post(`/v1/runs/${encodeURIComponent(e.runId)}/events`, e, headers)
const metadata = (r) => [r.eventId, r.runSeq, r.persistedAt]

// ---- one ----

test('append: one event is 201, durable and in order', async () => {
  const runId = id('ż/ 1')
  const first = of(runId, 'RunStarted')
  const answer = await append(first)
  same([answer.status, answer.json.eventId, answer.json.runSeq, answer.json.duplicate], [201, first.eventId, 1, false])
  same((await append(of(runId, 'StepStarted', { stepId: 's' }))).json.runSeq, 2)
  const [got] = await events(runId)
  same([got.eventId, got.emittedAt, got.idempotencyKey, got.persistedAt], [first.eventId, first.emittedAt, first.idempotencyKey, answer.json.persistedAt])
})
// RE-3.2-1, RE-3.2-2, RE-3.2-4: the duplicate succeeds with the metadata of the first, even with another eventId and payload, and even when
// its transition would not be allowed any more.
test('append: a duplicate is 200 with the metadata of the first', async () => {
  const runId = id('dup')
  const first = of(runId, 'RunStarted', { payload: { n: 1 } })
  const one = await append(first)
  await append(of(runId, 'RunCompleted'))
  for (const again of [first, { ...first, eventId: randomUUID() }, { ...first, payload: { n: 2 } }, { ...first, eventId: randomUUID(), payload: { n: 3 } }]) {
    const two = await append(again)
    same([two.status, two.json.duplicate], [200, true])
    same(metadata(two.json), metadata(one.json))
  }
  const list = await events(runId)
  same(list.map((e) => e.eventType), ['RunStarted', 'RunCompleted'])
  same(list[0].payload, { n: 1 })
})
// RE-3.2-3: many at once, and one record.
test('append: the same event from 16 connections at once is one record', async () => {
  const runId = id('race')
  const e = of(runId, 'RunStarted')
  const clients = Array.from({ length: 16 }, () => new Judged(acme.keys.producer))
  const answers = await Promise.all(clients.map((c) => c.post(`/v1/runs/${runId}/events`, e)))
  clients.forEach((c) => c.close())
  same(answers.map((a) => a.status).sort().join(), `${'200,'.repeat(15)}201`)
  same(new Set(answers.map((a) => metadata(a.json).join())).size, 1)
  same((await events(runId)).length, 1)
})
test('append: a wrong key, another run, a forbidden transition', async () => {
  const runId = id('bad')
  const e = of(runId, 'RunStarted')
  await producer.refused(400, 'KEY_MISMATCH', 'POST', `/v1/runs/${runId}/events`, { ...e, idempotencyKey: '0'.repeat(64) }, [], '/idempotencyKey')
  await producer.refused(400, 'RUN_ID_MISMATCH', 'POST', '/v1/runs/other/events', e, [], '/runId')
  await producer.refused(409, 'INVALID_TRANSITION', 'POST', `/v1/runs/${runId}/events`, of(runId, 'RunResumed'))
  const far = JSON.stringify(e).replace('"engineAttemptId":1', '"engineAttemptId":9007199254740992') // what JavaScript cannot count to
  await producer.refused(400, 'ATTEMPT_OUT_OF_RANGE', 'POST', `/v1/runs/${runId}/events`, far, [], '/engineAttemptId')
  await viewer.refused(404, 'RUN_NOT_FOUND', 'GET', `/v1/runs/${runId}`)
})
test('append: an event of another tenant finds nothing', async () => {
  const runId = id('foreign')
  const e = event(other.name, runId, 'RunStarted')
  await producer.refused(404, 'RUN_NOT_FOUND', 'POST', `/v1/runs/${runId}/events`, e)
  await other.viewer.refused(404, 'RUN_NOT_FOUND', 'GET', `/v1/runs/${runId}`)
  // a run of another tenant, with an event that claims to be ours
  await other.producer.must(201, 'POST', `/v1/runs/${runId}/events`, e)
  const claimed = await append(of(runId, 'RunStarted'))
  check([404, 409].includes(claimed.status), `${claimed.status} ${claimed.body}`)
  check(!claimed.body.toString().includes(other.name), claimed.body.toString())
  same((await run(runId, other.viewer)).runSeq, 1)
})
test('append: bodies and their types', async () => {
  const to = '/v1/runs/x/events'
  await producer.refused(400, 'BODY_MISSING', 'POST', to, '', [['Content-Type', 'application/json']])
  await producer.refused(415, 'UNSUPPORTED_MEDIA_TYPE', 'POST', to, 'x', [['Content-Type', 'text/plain']])
  await producer.refused(415, 'UNSUPPORTED_MEDIA_TYPE', 'POST', '/v1/events', '{}')
  const long = await append(of(id('long'), 'RunStarted', { payload: { x: 'y'.repeat(300 * 1024) } }))
  check(long.status === 413 || long.status === 422, `${long.status} ${long.body}`)
})
test('append: the actor is who appended it, and traceparent its correlation', async () => {
  const runId = id('traced')
  const trace = randomUUID().replaceAll('-', '')
  await append(of(runId, 'RunStarted'), [['traceparent', `00-${trace}-00f067aa0ba902b7-01`]])
  same((await run(runId)).correlationId.replaceAll('-', ''), trace)
  const feed = await viewer.must(200, 'GET', `/v1/traces/${(await run(runId)).correlationId}`)
  same(feed.items.map((e) => e.runId), [runId])
  check(feed.items[0].actor.startsWith(`key:${acme.ids.producer}@`), feed.items[0].actor)
})
test('append: the same bytes as another type are another request', async () => {
  const e = of(id('typed'), 'RunStarted')
  const key = ['Idempotency-Key', id('k')]
  const as = (type) => producer.post(`/v1/runs/${e.runId}/events`, JSON.stringify(e), [['Content-Type', type], key])
  same((await as('application/json')).status, 201)
  const again = await as('Application/JSON; charset=utf-8') // the same type, in other words
  same([again.status, again.headers['idempotent-replayed']], [200, 'true'])
  const lines = await as('application/x-ndjson')
  same([lines.status, lines.json.code], [422, 'IDEMPOTENCY_KEY_REUSED'])
})
test('append: repeated with an Idempotency-Key', async () => {
  const runId = id('keyed')
  const key = [['Idempotency-Key', id('k')]]
  const e = of(runId, 'RunStarted')
  const one = await append(e, key)
  const two = await append(e, key)
  same([one.status, two.status, two.headers['idempotent-replayed']], [201, 200, 'true'])
  same(metadata(two.json), metadata(one.json))
  await producer.refused(422, 'IDEMPOTENCY_KEY_REUSED', 'POST', `/v1/runs/${runId}/events`, of(runId, 'RunCompleted'), key)
})

// ---- many ----

test('append: a batch has one answer a line, and bad ones do not stop the others', async () => {
  const [a, b] = [id('a'), id('b')]
  const text = JSON.stringify(of(a, 'RunStarted')) + '\n\n{"nope":1}\n' + JSON.stringify(event(other.name, b, 'RunStarted')) + '\nnot json\n' +
    JSON.stringify(of(b, 'RunStarted')) + '\n' + JSON.stringify(of(a, 'RunStarted')) + '\n' + JSON.stringify(of(b, 'RunResumed')) + '\n' + JSON.stringify(of(a, 'RunCompleted'))
  const { lines } = await producer.lines('/v1/events', text)
  same(lines.map((l) => l.line ?? (l.duplicate ? 'dup' : 'new')), ['new', 3, 4, 5, 'new', 'dup', 8, 'new'])
  same(lines.filter((l) => l.error).map((l) => l.error.code).slice(1), ['RUN_NOT_FOUND', 'JSON_SYNTAX', 'INVALID_TRANSITION'])
  same([(await run(a)).status, (await run(b)).status], ['COMPLETED', 'RUNNING'])
})
test('append: a batch to one run takes only its events', async () => {
  const runId = id('one')
  const { lines } = await producer.lines(`/v1/runs/${runId}/events`, ndjson([of(runId, 'RunStarted'), of('another', 'RunStarted')]))
  same([lines[0].runSeq, lines[1].error.code], [1, 'RUN_ID_MISMATCH'])
})
test('append: atomic is all or nothing', async () => {
  const runId = id('atomic')
  const bad = [of(runId, 'RunStarted'), of(runId, 'StepStarted', { stepId: 's' }), of(runId, 'RunResumed')]
  const answer = await producer.lines('/v1/events?atomic=true', ndjson(bad))
  same([answer.status, answer.json.code], [409, 'INVALID_TRANSITION'])
  await viewer.refused(404, 'RUN_NOT_FOUND', 'GET', `/v1/runs/${runId}`)
  const syntax = await producer.lines('/v1/events?atomic=true', ndjson(bad.slice(0, 2)) + 'x\n')
  same(syntax.status, 400)
  check(syntax.json.detail.startsWith('line 3'), syntax.json.detail)
  await viewer.refused(404, 'RUN_NOT_FOUND', 'GET', `/v1/runs/${runId}`)
  same((await producer.lines('/v1/events?atomic=true', ndjson(bad.slice(0, 2)))).lines.map((l) => l.runSeq), [1, 2])
})
test('append: 4096 lines are taken, 4097 and 8 MiB are not', async () => {
  const runId = id('large')
  const steps = Array.from({ length: 4095 }, (_, i) => of(runId, 'StepStarted', { stepId: `s${i}` }))
  const full = ndjson([of(runId, 'RunStarted'), ...steps])
  const { lines } = await producer.lines('/v1/events', full)
  same([lines.length, lines.every((l, i) => l.runSeq === i + 1)], [4096, true])
  const more = await producer.lines('/v1/events', full + full.split('\n')[0])
  same([more.status, more.json.code], [413, 'BATCH_TOO_LARGE'])
  const huge = await producer.post('/v1/events', undefined, [['Content-Type', 'application/x-ndjson'], ['Content-Length', String(8 * 1024 * 1024 + 1)]])
  check(huge.status === 413, `${huge.status} ${huge.body}`)
  same((await run(runId)).runSeq, 4096)
})
test('append: a caller of all tenants appends for any', async () => {
  const [a, b] = [id('a'), id('b')]
  const { lines } = await root.lines('/v1/events', ndjson([of(a, 'RunStarted'), event(other.name, b, 'RunStarted')]))
  same(lines.map((l) => l.runSeq), [1, 1])
  await viewer.refused(404, 'RUN_NOT_FOUND', 'GET', `/v1/runs/${b}`)
})
