// Every table and row operation of the official Node SDK, unmodified, against one server. Each check has a name; the
// last line of output is a JSON object from names to "ok" or to what went wrong.
'use strict';

const assert = require('assert');
const TableStore = require('tablestore');

const Long = TableStore.Long;
const client = new TableStore.Client({
  accessKeyId: process.env.ACCESS_KEY_ID,
  secretAccessKey: process.env.ACCESS_KEY_SECRET,
  endpoint: process.env.ENDPOINT,
  instancename: process.env.INSTANCE,
  maxRetries: 0,
});

const TABLE = 'orders';
const IGNORE = new TableStore.Condition(TableStore.RowExistenceExpectation.IGNORE, null);
const EXIST = new TableStore.Condition(TableStore.RowExistenceExpectation.EXPECT_EXIST, null);
const NOT_EXIST = new TableStore.Condition(TableStore.RowExistenceExpectation.EXPECT_NOT_EXIST, null);
const START = [{ pk: TableStore.INF_MIN }, { n: TableStore.INF_MIN }];
const END = [{ pk: TableStore.INF_MAX }, { n: TableStore.INF_MAX }];
const NO_RESERVE = { capacityUnit: { read: 0, write: 0 } };

function key(n, pk) {
  return [{ pk: pk || 'a' }, { n: Long.fromNumber(n) }];
}

function plain(value) {
  if (value && typeof value.toNumber === 'function') return value.toNumber();
  return value;
}

// The attributes of a row as [[name, value], ...]; null for an absent row.
function cells(row) {
  if (!row || !row.attributes) return null;
  return row.attributes.map((column) => [column.columnName, plain(column.columnValue)]);
}

function numbers(rows) {
  return rows.map((row) => plain(row.primaryKey[1].value));
}

function put(n, columns, condition) {
  return client.putRow({
    tableName: TABLE, condition: condition || IGNORE, primaryKey: key(n), attributeColumns: columns,
  });
}

async function get(n, options) {
  const answer = await client.getRow(Object.assign({ tableName: TABLE, primaryKey: key(n), maxVersions: 1 }, options));
  return cells(answer.row);
}

async function update(n, changes, condition, options) {
  return client.updateRow(Object.assign({
    tableName: TABLE, condition: condition || IGNORE, primaryKey: key(n), updateOfAttributeColumns: changes,
  }, options));
}

// The SDK knows an error by its HTTP status; code and text are somewhere in the message.
async function refused(promise, status, text) {
  let error = null;
  try {
    await promise;
  } catch (caught) {
    error = caught;
  }
  assert(error, 'expected a refusal: ' + text);
  assert.strictEqual(Number(error.code), status, String(error.message));
  assert(String(error.message).includes(text), String(error.message));
}

const checks = {
  async 'create, list and describe a table with a stream'() {
    await client.createTable({
      tableMeta: { tableName: TABLE, primaryKey: [{ name: 'pk', type: 'STRING' }, { name: 'n', type: 'INTEGER' }] },
      reservedThroughput: NO_RESERVE,
      tableOptions: { timeToLive: -1, maxVersions: 3 },
      streamSpecification: { enableStream: true, expirationTime: 24 },
    });
    const listed = await client.listTable({});
    assert.deepStrictEqual(listed.tableNames || listed.table_names, [TABLE]);
    const described = await client.describeTable({ tableName: TABLE });
    assert.strictEqual(described.tableMeta.tableName, TABLE);
    assert.deepStrictEqual(described.tableMeta.primaryKey.map((column) => column.name), ['pk', 'n']);
    assert.strictEqual(described.tableOptions.maxVersions, 3);
    assert.strictEqual(described.streamDetails.enableStream, true);
    assert.strictEqual(described.streamDetails.expirationTime, 24);
  },

  async 'an existing table is not created again'() {
    await refused(client.createTable({
      tableMeta: { tableName: TABLE, primaryKey: [{ name: 'pk', type: 'STRING' }] },
      reservedThroughput: NO_RESERVE,
      tableOptions: { timeToLive: -1, maxVersions: 1 },
    }), 409, 'OTSObjectAlreadyExist');
  },

  async 'update table options'() {
    await client.updateTable({ tableName: TABLE, tableOptions: { maxVersions: 5 } });
    const described = await client.describeTable({ tableName: TABLE });
    assert.strictEqual(described.tableOptions.maxVersions, 5);
    assert.strictEqual(described.tableOptions.timeToLive, -1);
  },

  async 'switch the stream off and on again'() {
    const first = await client.describeTable({ tableName: TABLE });
    await client.updateTable({ tableName: TABLE, tableOptions: { maxVersions: 5 }, streamSpecification: { enableStream: false } });
    const off = await client.describeTable({ tableName: TABLE });
    assert.strictEqual(off.streamDetails.enableStream, false);
    await client.updateTable({
      tableName: TABLE, tableOptions: { maxVersions: 5 }, streamSpecification: { enableStream: true, expirationTime: 48 },
    });
    const second = await client.describeTable({ tableName: TABLE });
    assert.strictEqual(second.streamDetails.expirationTime, 48);
    assert.notStrictEqual(second.streamDetails.streamId, first.streamDetails.streamId);
  },

  async 'every value type comes back'() {
    await put(1, [
      { big: Long.fromString('9223372036854775807') }, { blob: Buffer.from([0, 255]) }, { double: -1.5 },
      { flag: true }, { text: '表格存储' },
    ], NOT_EXIST);
    const answer = await client.getRow({ tableName: TABLE, primaryKey: key(1), maxVersions: 1 });
    const values = {};
    for (const column of answer.row.attributes) values[column.columnName] = column.columnValue;
    assert.strictEqual(values.big.toString(), '9223372036854775807');
    assert.deepStrictEqual(Array.from(values.blob), [0, 255]);
    assert.strictEqual(values.double, -1.5);
    assert.strictEqual(values.flag, true);
    assert.strictEqual(values.text, '表格存储');
  },

  async 'an absent row is empty'() {
    assert.strictEqual(await get(404), null);
  },

  async 'put replaces the whole row'() {
    await put(2, [{ a: 'x' }, { b: 'y' }]);
    await put(2, [{ c: 'z' }]);
    assert.deepStrictEqual(await get(2), [['c', 'z']]);
  },

  async 'columns to get select'() {
    await put(3, [{ a: '1' }, { b: '2' }, { c: '3' }]);
    assert.deepStrictEqual(await get(3, { columnsToGet: ['a', 'c'] }), [['a', '1'], ['c', '3']]);
    assert.deepStrictEqual(await get(3, { startColumn: 'b', endColumn: 'c' }), [['b', '2']]);
  },

  async 'update puts, deletes and increments'() {
    await put(4, [{ gone: 'x' }, { kept: 'y' }, { count: Long.fromNumber(40) }]);
    const answer = await update(
      4,
      [{ PUT: [{ fresh: 'z' }] }, { DELETE_ALL: ['gone'] }, { INCREMENT: [{ count: Long.fromNumber(2) }] }],
      EXIST,
      { returnContent: { returnColumns: ['count'], returnType: TableStore.ReturnType.AfterModify } },
    );
    assert.deepStrictEqual(cells(answer.row), [['count', 42]]);
    assert.deepStrictEqual(await get(4), [['count', 42], ['fresh', 'z'], ['kept', 'y']]);
  },

  async 'versions are kept, selected and deleted one by one'() {
    const now = Date.now();
    for (const age of [3, 2, 1]) {
      await update(5, [{ PUT: [{ a: 'age' + age, timestamp: Long.fromNumber(now - age) }] }]);
    }
    assert.deepStrictEqual(await get(5, { maxVersions: 9 }), [['a', 'age1'], ['a', 'age2'], ['a', 'age3']]);
    const range = { startTime: String(now - 3), endTime: String(now - 1) };
    assert.deepStrictEqual(await get(5, { maxVersions: 9, timeRange: range }), [['a', 'age2'], ['a', 'age3']]);
    await update(5, [{ DELETE: [{ a: Long.fromNumber(now - 2) }] }]);
    assert.deepStrictEqual(await get(5, { maxVersions: 9 }), [['a', 'age1'], ['a', 'age3']]);
  },

  async 'conditions refuse and admit'() {
    await refused(put(6, [{ a: '1' }], EXIST), 403, 'OTSConditionCheckFail');
    await put(6, [{ a: 'one' }, { b: 'two' }], NOT_EXIST);
    await refused(put(6, [{ a: '1' }], NOT_EXIST), 403, 'Condition check failed.');
    const holds = new TableStore.CompositeCondition(TableStore.LogicalOperator.AND);
    holds.addSubCondition(new TableStore.SingleColumnCondition('a', 'one', TableStore.ComparatorType.EQUAL));
    holds.addSubCondition(new TableStore.SingleColumnCondition('b', 'three', TableStore.ComparatorType.LESS_THAN, false));
    const when = (column) => new TableStore.Condition(TableStore.RowExistenceExpectation.EXPECT_EXIST, column);
    await refused(update(6, [{ PUT: [{ c: 'x' }] }], when(holds)), 403, 'OTSConditionCheckFail');
    const equal = new TableStore.SingleColumnCondition('a', 'one', TableStore.ComparatorType.EQUAL);
    await update(6, [{ PUT: [{ c: 'x' }] }], when(equal));
    assert.deepStrictEqual(await get(6), [['a', 'one'], ['b', 'two'], ['c', 'x']]);
  },

  async 'filters hide rows and page through columns'() {
    await put(7, [{ a: '1' }, { b: '2' }, { c: '3' }, { d: '4' }]);
    const other = new TableStore.SingleColumnCondition('a', '2', TableStore.ComparatorType.EQUAL);
    assert.strictEqual(await get(7, { columnFilter: other }), null);
    const page = new TableStore.ColumnPaginationFilter(2, 1);
    assert.deepStrictEqual(await get(7, { columnFilter: page }), [['b', '2'], ['c', '3']]);
  },

  async 'delete a row'() {
    await put(8, [{ a: '1' }]);
    await client.deleteRow({ tableName: TABLE, condition: EXIST, primaryKey: key(8) });
    assert.strictEqual(await get(8), null);
    await refused(client.deleteRow({ tableName: TABLE, condition: EXIST, primaryKey: key(8) }), 403, 'OTSConditionCheckFail');
  },

  async 'a batch writes row by row and reports each'() {
    const answer = await client.batchWriteRow({
      tables: [{
        tableName: TABLE,
        rows: [
          { type: 'PUT', condition: IGNORE, primaryKey: key(20), attributeColumns: [{ a: '1' }],
            returnContent: { returnType: TableStore.ReturnType.Primarykey } },
          { type: 'PUT', condition: EXIST, primaryKey: key(21), attributeColumns: [{ a: '1' }] },
          { type: 'UPDATE', condition: IGNORE, primaryKey: key(22), attributeColumns: [{ PUT: [{ a: '2' }] }] },
          { type: 'DELETE', condition: IGNORE, primaryKey: key(7) },
        ],
      }],
    });
    assert.deepStrictEqual(answer.tables.map((row) => row.isOk), [true, false, true, true]);
    assert.strictEqual(answer.tables[1].errorCode, 'OTSConditionCheckFail');
    assert.strictEqual(plain(answer.tables[0].primaryKey[1].value), 20);
    assert.deepStrictEqual([await get(20), await get(21), await get(22), await get(7)],
      [[['a', '1']], null, [['a', '2']], null]);
  },

  async 'a batch reads in request order'() {
    const answer = await client.batchGetRow({
      tables: [{ tableName: TABLE, primaryKey: [key(22), key(404), key(20)], maxVersions: 1 }],
    });
    const rows = answer.tables[0];
    assert.deepStrictEqual(rows.map((row) => row.isOk), [true, true, true]);
    assert.deepStrictEqual(rows.map(cells), [[['a', '2']], null, [['a', '1']]]);
  },

  async 'ranges run both ways, page by page'() {
    for (const n of [101, 102, 103, 104, 105]) {
      await client.putRow({ tableName: TABLE, condition: IGNORE, primaryKey: key(n, 'range'), attributeColumns: [{ v: 'x' }] });
    }
    const bounds = [key(101, 'range'), key(105, 'range')];
    for (const [direction, first, last, expected] of [
      [TableStore.Direction.FORWARD, bounds[0], bounds[1], [101, 102, 103, 104]],
      [TableStore.Direction.BACKWARD, bounds[1], bounds[0], [105, 104, 103, 102]],
    ]) {
      const found = [];
      let start = first;
      for (let page = 0; page < 5 && start; page += 1) {
        const answer = await client.getRange({
          tableName: TABLE, direction, maxVersions: 1, limit: 3,
          inclusiveStartPrimaryKey: start, exclusiveEndPrimaryKey: last,
        });
        found.push(...numbers(answer.rows));
        const next = answer.nextStartPrimaryKey;
        start = next && [{ pk: next[0].value }, { n: next[1].value }];
      }
      assert.deepStrictEqual(found, expected);
    }
    const all = await client.getRange({
      tableName: TABLE, direction: TableStore.Direction.FORWARD, maxVersions: 1,
      inclusiveStartPrimaryKey: START, exclusiveEndPrimaryKey: END,
    });
    assert(all.rows.length > 8);
    assert(!all.nextStartPrimaryKey);
  },

  async 'auto-increment keys are generated and returned'() {
    await client.createTable({
      tableMeta: {
        tableName: 'sequenced',
        primaryKey: [{ name: 'pk', type: 'STRING' }, { name: 'id', type: 'INTEGER', option: 'AUTO_INCREMENT' }],
      },
      reservedThroughput: NO_RESERVE,
      tableOptions: { timeToLive: -1, maxVersions: 1 },
    });
    const seen = [];
    for (let count = 0; count < 3; count += 1) {
      const answer = await client.putRow({
        tableName: 'sequenced', condition: IGNORE,
        primaryKey: [{ pk: 'a' }, { id: TableStore.PK_AUTO_INCR }], attributeColumns: [{ v: 'x' }],
        returnContent: { returnType: TableStore.ReturnType.Primarykey },
      });
      seen.push(plain(answer.row.primaryKey[1].value));
    }
    assert(seen[0] < seen[1] && seen[1] < seen[2], JSON.stringify(seen));
    await client.deleteTable({ tableName: 'sequenced' });
  },

  async 'there are no search indexes'() {
    const answer = await client.listSearchIndex({ tableName: TABLE });
    assert((answer.indices || []).length === 0, JSON.stringify(answer));
  },

  async 'errors carry status, code and text'() {
    await refused(client.describeTable({ tableName: 'missing' }), 404, 'Requested table does not exist.');
    await refused(client.deleteSearchIndex({ tableName: TABLE, indexName: 'none' }), 400, 'DeleteSearchIndex');
    await refused(client.putRow({
      tableName: TABLE, condition: IGNORE, primaryKey: [{ pk: 'a' }], attributeColumns: [],
    }), 400, 'OTS');
  },

  async 'a wrong secret is refused'() {
    const stranger = new TableStore.Client({
      accessKeyId: process.env.ACCESS_KEY_ID, secretAccessKey: 'wrong', endpoint: process.env.ENDPOINT,
      instancename: process.env.INSTANCE, maxRetries: 0,
    });
    await refused(stranger.listTable({}), 403, 'Signature mismatch.');
  },

  async 'a security token is accepted'() {
    const temporary = new TableStore.Client({
      accessKeyId: process.env.ACCESS_KEY_ID, secretAccessKey: process.env.ACCESS_KEY_SECRET, stsToken: 'token',
      securityToken: 'token', endpoint: process.env.ENDPOINT, instancename: process.env.INSTANCE, maxRetries: 0,
    });
    assert((await temporary.listTable({})));
  },

  async 'delete the table'() {
    await client.deleteTable({ tableName: TABLE });
    const listed = await client.listTable({});
    assert.deepStrictEqual(listed.tableNames || listed.table_names || [], []);
  },
};

async function main() {
  const results = {};
  for (const [name, check] of Object.entries(checks)) {
    try {
      await check();
      results[name] = 'ok';
    } catch (error) {
      results[name] = String((error && error.stack) || error);
    }
  }
  console.log(JSON.stringify(results));
}

main();
