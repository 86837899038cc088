// api_tasks.mjs: outside workers.
import { Judged, check, id, ndjson, pause, same, test, until } from './harness.mjs'
import { acme, other, put, run, start, step } from './world.mjs'

const { worker } = acme
const poll = (queue, more = {}, by = worker) => by.must(200, 'POST', '/v1/tasks/poll', { queue, worker: 'w', ...more }).then((answer) => answer.items)
// A plan with a queue of its own, so that tests do not take each other's tasks.
async function queueOf(n = 1, more = {}) {
  const queue = id('queue')
  const ref = await put(Array.from({ length: n }, (_, i) => ({ stepId: `s${i}`, type: 'task', queue, input: { n: i }, ...more })))
  return { queue, ref }
}

test('poll: nothing there is an empty list, at once or after the wait', async () => {
  same(await poll(id('empty')), [])
  const before = Date.now()
  same(await poll(id('empty'), { waitMs: 300 }), [])
  check(Date.now() - before >= 280, 'too early')
})
test('poll: one that waits is woken by a start', async () => {
  const { queue, ref } = await queueOf()
  const waiting = new Judged(acme.keys.worker)
  const before = Date.now()
  const answer = poll(queue, { waitMs: 30000 }, waiting)
  await pause(200)
  const trace = '4bf92f3577b34da6a3ce929d0e0e4736'
  const runId = await start(ref, { headers: [['traceparent', `00-${trace}-00f067aa0ba902b7-01`]] })
  const [task] = await answer
  check(Date.now() - before < 10000, 'too late')
  same([task.runId, task.stepId, task.attempt, task.lease, task.queue, task.tenantId, task.input], [runId, 's0', 1, 1, queue, acme.name, { n: 0 }])
  check(task.traceparent.startsWith(`00-${trace}-`), task.traceparent)
  same(await worker.must(200, 'POST', '/v1/tasks/complete', { task: task.task, output: { made: 1 } }), {})
  await until('it is over', async () => (await run(runId)).status === 'COMPLETED')
  same((await step(runId, 's0')).output, { made: 1 })
  waiting.close()
})
test('poll: a batch, and each task once', async () => {
  const { queue, ref } = await queueOf(7)
  await start(ref)
  const tasks = []
  await until('all are taken', async () => { tasks.push(...await poll(queue, { max: 3, waitMs: 200 })); return tasks.length >= 7 })
  same(new Set(tasks.map((t) => t.stepId)).size, 7)
  same(await poll(queue, { max: 100 }), [])
})
test('poll: what is asked for must make sense', async () => {
  for (const [more, where] of [[{ max: 0 }, '/max'], [{ max: 101 }, '/max'], [{ leaseMs: 99 }, '/leaseMs'], [{ waitMs: 60001 }, '/waitMs']]) await worker.refused(400, 'NUMBER_OUT_OF_RANGE', 'POST', '/v1/tasks/poll', { queue: 'q', worker: 'w', ...more }, [], where)
  await worker.refused(400, 'FIELD_MISSING', 'POST', '/v1/tasks/poll', { queue: 'q' }, [], '/worker')
  await worker.refused(404, 'TENANT_NOT_FOUND', 'POST', '/v1/tasks/poll', { queue: 'q', worker: 'w', tenantId: other.name })
})
test('heartbeat: keeps a task beyond its lease', async () => {
  const { queue, ref } = await queueOf()
  const runId = await start(ref)
  const [{ task, leaseUntil }] = await poll(queue, { leaseMs: 400, waitMs: 5000 })
  const kept = await worker.must(200, 'POST', '/v1/tasks/heartbeat', { task, leaseMs: 60000 })
  check(kept.leaseUntil > leaseUntil, `${kept.leaseUntil} after ${leaseUntil}`)
  await pause(600)
  same(await poll(queue), [])
  await worker.must(200, 'POST', '/v1/tasks/complete', { task })
  await until('it is over', async () => (await run(runId)).status === 'COMPLETED')
})
test('lease: when it is over another worker gets the task, and the first has lost it', async () => {
  const { queue, ref } = await queueOf()
  const runId = await start(ref)
  const [first] = await poll(queue, { leaseMs: 100, waitMs: 5000 })
  const [second] = await poll(queue, { waitMs: 10000 })
  same([second.stepId, second.attempt], [first.stepId, first.attempt])
  check(second.lease > first.lease, `${second.lease} after ${first.lease}`)
  for (const path of ['heartbeat', 'complete']) await worker.refused(409, 'LEASE_LOST', 'POST', `/v1/tasks/${path}`, { task: first.task })
  await worker.refused(409, 'LEASE_LOST', 'POST', '/v1/tasks/fail', { task: first.task, code: 'LATE' })
  await worker.must(200, 'POST', '/v1/tasks/complete', { task: second.task, output: 'mine' })
  await until('it is over', async () => (await run(runId)).status === 'COMPLETED')
  same((await step(runId, 's0')).output, 'mine')
})
test('complete: twice is fine, and counts once', async () => {
  const { queue, ref } = await queueOf(2)
  const runId = await start(ref)
  const [{ task, stepId }] = await poll(queue, { waitMs: 5000 })
  for (let i = 0; i < 3; i++) await worker.must(200, 'POST', '/v1/tasks/complete', { task, output: i })
  same([(await step(runId, stepId)).output, (await step(runId, stepId)).logicalAttemptId], [0, 1])
})
test('fail: the plan says whether it is tried again', async () => {
  const { queue, ref } = await queueOf(1, { retry: { maxAttempts: 2, initialMs: 10 } })
  const runId = await start(ref)
  const [first] = await poll(queue, { waitMs: 5000 })
  same(await worker.must(200, 'POST', '/v1/tasks/fail', { task: first.task, code: 'NO_PAPER', message: 'the tray is empty' }), {})
  const [second] = await poll(queue, { waitMs: 10000 })
  same(second.attempt, 2)
  await worker.must(200, 'POST', '/v1/tasks/fail', { task: second.task, code: 'NO_PAPER', message: 'again' })
  await until('it failed', async () => (await run(runId)).status === 'FAILED')
  const s = await step(runId, 's0')
  same([s.code, s.message, s.logicalAttemptId], ['NO_PAPER', 'again', 2])
})
test('results: many at once, and the next tasks with the answer', async () => {
  const { queue, ref } = await queueOf(5, { onFailure: 'continue' })
  const runId = await start(ref)
  const tasks = []
  await until('three are taken', async () => { tasks.push(...await poll(queue, { max: 3 - tasks.length, waitMs: 200 })); return tasks.length === 3 })
  const body = [{ task: tasks[0].task, output: { ok: 1 } }, { task: 'AAAA' }, { task: tasks[1].task, error: { code: 'BROKEN', message: 'm' } }, { task: tasks[2].task, output: 1, error: { code: 'X' } }]
  const text = `${body.map((b) => JSON.stringify(b)).join('\n')}\n\nnot json\n`
  const { lines } = await worker.lines(`/v1/tasks/results?poll=${queue}&worker=w&max=10&waitMs=5000`, text)
  same(lines.slice(0, 5).map((l) => l.ok ?? [l.line, l.error.code]), [true, [2, 'TASK_TOKEN_INVALID'], true, [4, 'FIELD_UNKNOWN'], [6, 'JSON_SYNTAX']])
  same(lines.length, 6)
  check(lines[5].items.length >= 1, JSON.stringify(lines[5]))
  same((await step(runId, tasks[0].stepId)).output, { ok: 1 })
  same((await step(runId, tasks[1].stepId)).code, 'BROKEN')
})
test('results: megabytes of them, which are read beside the loop', async () => {
  const { queue, ref } = await queueOf(2, {})
  const runId = await start(ref)
  const tasks = []
  await until('both are taken', async () => { tasks.push(...await poll(queue, { max: 2 - tasks.length, waitMs: 200 })); return tasks.length === 2 })
  const output = { rows: Array.from({ length: 200 }, (_, n) => ({ n, name: `row ${n}`, good: true })) }
  const body = Array.from({ length: 600 }, () => ({ task: 'AAAA', output }))
  body[0].task = tasks[0].task
  body[599].task = tasks[1].task
  const { lines } = await worker.lines('/v1/tasks/results', ndjson(body))
  same([lines.length, lines[0], lines[599]], [600, { ok: true }, { ok: true }])
  check(lines.slice(1, 599).every((l, i) => l.line === i + 2 && l.error.code === 'TASK_TOKEN_INVALID'), JSON.stringify(lines[1]))
  await until('it has ended', async () => (await run(runId)).status === 'COMPLETED')
  same((await step(runId, tasks[1].stepId)).output, output)
})
test('results: without a body it is a poll; with too many lines it is refused', async () => {
  const { lines } = await worker.lines(`/v1/tasks/results?poll=${id('none')}&worker=w`, '')
  same(lines, [{ items: [] }])
  const many = await worker.lines('/v1/tasks/results', '{"task":"A"}\n'.repeat(1001))
  same([many.status, many.json.code], [413, 'BATCH_TOO_LARGE'])
  await worker.refused(400, 'PARAMETER_MISSING', 'POST', '/v1/tasks/results?poll=q', '', [['Content-Type', 'application/x-ndjson']], '?worker')
})
test('a token of another tenant, a forged and a spoiled one', async () => {
  const { queue, ref } = await queueOf()
  const runId = await start(ref)
  const [{ task }] = await poll(queue, { waitMs: 5000 })
  for (const path of ['heartbeat', 'complete']) await other.worker.refused(404, 'RUN_NOT_FOUND', 'POST', `/v1/tasks/${path}`, { task })
  const plain = Buffer.from(task, 'base64url').toString()
  const forged = Buffer.from(plain.replace(/^t1\.1\.1\./, 't1.1.2.')).toString('base64url')
  check(forged !== task, plain)
  await worker.refused(409, 'LEASE_LOST', 'POST', '/v1/tasks/complete', { task: forged })
  for (const bad of ['x', task.slice(0, 8), `${task}!`]) await worker.refused(400, 'TASK_TOKEN_INVALID', 'POST', '/v1/tasks/complete', { task: bad }, [], '/task')
  await acme.viewer.refused(403, 'FORBIDDEN', 'POST', '/v1/tasks/complete', { task })
  same((await step(runId, 's0')).state, 'RUNNING')
})
test('a worker whose connection ends while it waits gets no task', async () => {
  const { queue, ref } = await queueOf()
  const gone = new Judged(acme.keys.worker)
  const answer = gone.post('/v1/tasks/poll', { queue, worker: 'gone', waitMs: 30000 }).catch(() => null)
  await pause(200)
  gone.close()
  await pause(200)
  await start(ref)
  same((await poll(queue, { waitMs: 5000 })).length, 1)
  await Promise.race([answer, pause(10)])
})
