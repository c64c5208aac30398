package foldflight;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InvalidClassException;
import java.io.ObjectInputFilter;
import java.io.ObjectInputStream;
import java.io.ObjectOutputStream;
import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.lang.reflect.RecordComponent;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;

/**
 * The accumulators of one call, by slot, and loops over the rows of a chunk that call the author's methods.
 *
 * <p>Each method of the author becomes a handle {@code (Object accumulator, int row) -> Object} whose arguments are read
 * from the columns of the chunk. A loop that meets an exception keeps it in {@link #failure} and returns the number of
 * its row; all rows before it have been applied. It returns -1 after the last row. Columns and results are buffers in
 * the byte order of the machine, one value for each row, with one byte for each row that tells whether it is not null.
 */
public final class Loops {
  private static final MethodHandles.Lookup LOOKUP = MethodHandles.lookup();
  private static final MethodType APPLY = MethodType.methodType(Object.class, Object.class, int.class);

  /** The exception of the row at which a loop stopped; null if its method returned null instead of an accumulator. */
  public Throwable failure;

  /** Whether a merge stopped before it called the author's method, because a state could not be read. */
  public boolean loading;

  private final Object instance;
  private final Class<?> type;
  private Object[] held = new Object[0];
  private MethodHandle create;
  private MethodHandle value;
  private MethodHandle merge;
  private MethodHandle load;
  private boolean exact;
  private MethodHandle[] applies = new MethodHandle[2];
  private MethodHandle[] members = new MethodHandle[0];
  private Column[] arguments = new Column[0];
  private Column[] stored = new Column[0];

  /**
   * @param instance the instance of the author's class
   * @param type the class of its accumulators
   */
  public Loops(Object instance, Class<?> type) {
    this.instance = instance;
    this.type = type;
  }

  // --- the author's methods ------------------------------------------------------------------------------------------

  /** Sets createAccumulator and getValue. */
  public void makes(Method create, Method value) throws ReflectiveOperationException {
    this.create = of(create).asType(MethodType.methodType(Object.class));
    this.value = of(value).asType(MethodType.methodType(Object.class, Object.class));
  }

  /** Sets accumulate and retract; retract may be null. */
  public void applies(Method accumulate, Method retract) throws ReflectiveOperationException {
    arguments = columns(accumulate.getParameterCount() - 1);
    applies[0] = applied(of(accumulate));
    applies[1] = retract == null ? null : applied(of(retract));
  }

  /** Sets merge, which takes a second accumulator or an Iterable of one. */
  public void merges(Method merge) throws ReflectiveOperationException {
    MethodHandle handle = of(merge);
    if (handle.type().parameterType(1) == Iterable.class) {
      MethodHandle one =
          LOOKUP.findStatic(Collections.class, "singletonList", MethodType.methodType(List.class, Object.class));
      handle = MethodHandles.filterArguments(handle, 1, one.asType(MethodType.methodType(Iterable.class, Object.class)));
    }
    this.merge = handle.asType(MethodType.methodType(Object.class, Object.class, Object.class));
  }

  /** Sets the fields of the accumulator's class, in the order of its states. */
  public void fields(String[] names) throws ReflectiveOperationException {
    exact = true; // a subclass may have more fields, which the states would lose
    stored = columns(names.length);
    members = new MethodHandle[names.length];
    MethodHandle[] readers = new MethodHandle[names.length];
    Class<?>[] types = new Class<?>[names.length];
    MethodHandle[] setters = new MethodHandle[names.length];
    for (int place = 0; place < names.length; place++) {
      if (type.isRecord()) {
        RecordComponent component = type.getRecordComponents()[place];
        types[place] = component.getType();
        members[place] = LOOKUP.unreflect(component.getAccessor());
      } else {
        Field field = type.getField(names[place]);
        field.setAccessible(true); // a public field may be that of a superclass that is not public
        types[place] = field.getType();
        members[place] = LOOKUP.unreflectGetter(field);
        setters[place] = LOOKUP.unreflectSetter(field);
        setters[place] = setters[place].asType(setters[place].type().changeParameterType(0, type)); // of a superclass
      }
      members[place] = members[place].asType(MethodType.methodType(Object.class, Object.class));
      readers[place] = stored[place].reader(types[place]);
    }
    if (type.isRecord()) {
      MethodHandle constructor = LOOKUP.unreflectConstructor(type.getConstructor(types));
      load = spread(MethodHandles.filterArguments(constructor, 0, readers), 0);
    } else {
      Constructor<?> constructor = type.getConstructor();
      load = MethodHandles.dropArguments(LOOKUP.unreflectConstructor(constructor), 0, int.class);
      for (int place = 0; place < names.length; place++) {
        MethodHandle set = MethodHandles.filterArguments(setters[place], 1, readers[place]);  // (type, int) void
        MethodHandle returns = MethodHandles.dropArguments(MethodHandles.identity(type), 1, int.class);
        MethodHandle filled = MethodHandles.foldArguments(returns, set);  // (type, int) type
        load = MethodHandles.foldArguments(filled, load);
      }
    }
    load = load.asType(MethodType.methodType(Object.class, int.class));
  }

  /** Makes the accumulator itself, a number or a text, the only column of its states. */
  public void scalar() {
    stored = columns(1);
    members = new MethodHandle[] {MethodHandles.identity(Object.class)};
    load = stored[0].reader(type).asType(MethodType.methodType(Object.class, int.class));
  }

  private MethodHandle of(Method method) throws IllegalAccessException {
    method.setAccessible(true); // a public method may be that of a superclass that is not public
    MethodHandle handle = LOOKUP.unreflect(method);
    return java.lang.reflect.Modifier.isStatic(method.getModifiers()) ? handle : handle.bindTo(instance);
  }

  private static Column[] columns(int count) {
    Column[] columns = new Column[count];
    for (int place = 0; place < count; place++) {
      columns[place] = new Column();
    }
    return columns;
  }

  /** Returns a method (accumulator, arguments...) as (accumulator, row). */
  private MethodHandle applied(MethodHandle method) {
    MethodHandle[] readers = new MethodHandle[arguments.length];
    for (int place = 0; place < readers.length; place++) {
      readers[place] = arguments[place].reader(method.type().parameterType(place + 1));
    }
    return spread(MethodHandles.filterArguments(method, 1, readers), 1).asType(APPLY);
  }

  /** Returns a handle whose parameters from {@code first} on, all rows, are one row. */
  private static MethodHandle spread(MethodHandle handle, int first) {
    MethodType wanted =
        handle.type().dropParameterTypes(first, handle.type().parameterCount()).appendParameterTypes(int.class);
    int[] order = new int[handle.type().parameterCount()];
    for (int place = 0; place < order.length; place++) {
      order[place] = Math.min(place, first);
    }
    return MethodHandles.permuteArguments(handle, wanted, order);
  }

  // --- accumulators --------------------------------------------------------------------------------------------------

  public int size() {
    return held.length;
  }

  public void grow(int size) {
    held = Arrays.copyOf(held, size);
  }

  /** Returns the accumulator of a slot; null if it is empty. */
  public Object get(int slot) {
    return held[slot];
  }

  public void set(int slot, Object accumulator) {
    held[slot] = accumulator;
  }

  // --- columns -------------------------------------------------------------------------------------------------------

  /** Sets the values of an argument. */
  public void argument(int place, ByteBuffer data, ByteBuffer valid, ByteBuffer offsets) {
    arguments[place].set(data, valid, offsets);
  }

  /** Sets the values of a field of states. */
  public void stored(int place, ByteBuffer data, ByteBuffer valid, ByteBuffer offsets) {
    stored[place].set(data, valid, offsets);
  }

  /** A column of a chunk. Its readers are parts of handles, so it stays the same object for all chunks. */
  private static final class Column {
    private ByteBuffer data;
    private ByteBuffer valid;
    private ByteBuffer offsets;

    void set(ByteBuffer data, ByteBuffer valid, ByteBuffer offsets) {
      this.data = ordered(data);
      this.valid = valid;
      this.offsets = ordered(offsets);
    }

    /** Returns a handle (row) that returns a value of this Java type. */
    MethodHandle reader(Class<?> type) {
      String name = type.isPrimitive() ? type.getName() + "At" : "boxed" + type.getSimpleName();
      try {
        return LOOKUP.findVirtual(Column.class, name, MethodType.methodType(type, int.class)).bindTo(this);
      } catch (ReflectiveOperationException error) {
        throw new IllegalArgumentException(type + " has no reader", error);
      }
    }

    private boolean isNull(int row) {
      return valid != null && valid.get(row) == 0;
    }

    boolean booleanAt(int row) {
      return data.get(row) != 0;
    }

    byte byteAt(int row) {
      return data.get(row);
    }

    short shortAt(int row) {
      return data.getShort(row << 1);
    }

    int intAt(int row) {
      return data.getInt(row << 2);
    }

    long longAt(int row) {
      return data.getLong(row << 3);
    }

    float floatAt(int row) {
      return data.getFloat(row << 2);
    }

    double doubleAt(int row) {
      return data.getDouble(row << 3);
    }

    Boolean boxedBoolean(int row) {
      return isNull(row) ? null : booleanAt(row);
    }

    Byte boxedByte(int row) {
      return isNull(row) ? null : byteAt(row);
    }

    Short boxedShort(int row) {
      return isNull(row) ? null : shortAt(row);
    }

    Integer boxedInteger(int row) {
      return isNull(row) ? null : intAt(row);
    }

    Long boxedLong(int row) {
      return isNull(row) ? null : longAt(row);
    }

    Float boxedFloat(int row) {
      return isNull(row) ? null : floatAt(row);
    }

    Double boxedDouble(int row) {
      return isNull(row) ? null : doubleAt(row);
    }

    String boxedString(int row) {
      if (isNull(row)) {
        return null;
      }
      int begin = offsets.getInt(row << 2);
      byte[] bytes = new byte[offsets.getInt((row + 1) << 2) - begin];
      data.get(begin, bytes);
      return new String(bytes, StandardCharsets.UTF_8);
    }
  }

  private static ByteBuffer ordered(ByteBuffer buffer) {
    return buffer == null ? null : buffer.order(ByteOrder.nativeOrder());
  }

  // --- loops ---------------------------------------------------------------------------------------------------------

  /** Creates the accumulators of n slots. */
  public int create(ByteBuffer slots, int count) {
    ordered(slots);
    int row = 0;
    try {
      for (; row < count; row++) {
        Object made = (Object) create.invokeExact();
        if (made == null || (exact && made.getClass() != type)) {
          return stopped(row, null);
        }
        held[slots.getInt(row << 2)] = made;
      }
    } catch (Throwable error) {
      return stopped(row, error);
    }
    return -1;
  }

  /**
   * Applies n rows to the accumulators of their slots.
   *
   * @param retracts one byte for each row, not 0 for a retraction; null if there are none
   * @param demands whether the methods must return an accumulator
   */
  public int fold(ByteBuffer slots, ByteBuffer retracts, int count, boolean demands) {
    ordered(slots);
    MethodHandle accumulate = applies[0];
    MethodHandle retract = applies[1];
    int row = 0;
    try {
      for (; row < count; row++) {
        int slot = slots.getInt(row << 2);
        Object accumulator = held[slot];
        Object returned;
        if (retracts == null || retracts.get(row) == 0) {
          returned = (Object) accumulate.invokeExact(accumulator, row);
        } else {
          returned = (Object) retract.invokeExact(accumulator, row);
        }
        if (returned != null) {
          held[slot] = returned;
        } else if (demands) {
          return stopped(row, null);
        }
      }
    } catch (Throwable error) {
      return stopped(row, error);
    }
    return -1;
  }

  /** Merges n states, whose columns are set, into n slots, in order. An empty slot takes the state itself. */
  public int merge(ByteBuffer slots, int count, boolean demands) {
    ordered(slots);
    int row = 0;
    try {
      for (; row < count; row++) {
        int slot = slots.getInt(row << 2);
        loading = true;
        Object state = (Object) load.invokeExact(row);
        loading = false;
        if (held[slot] == null) {
          held[slot] = state;
          continue;
        }
        Object returned = (Object) merge.invokeExact(held[slot], state);
        if (returned != null) {
          held[slot] = returned;
        } else if (demands) {
          return stopped(row, null);
        }
      }
    } catch (Throwable error) {
      return stopped(row, error);
    }
    return -1;
  }

  /** Writes the values of n slots. */
  public int values(ByteBuffer slots, int count, ByteBuffer data, ByteBuffer valid) {
    return written(value, slots, count, data, valid);
  }

  /** Writes one field of the states of n slots. */
  public int states(int place, ByteBuffer slots, int count, ByteBuffer data, ByteBuffer valid) {
    return written(members[place], slots, count, data, valid);
  }

  private int written(MethodHandle read, ByteBuffer slots, int count, ByteBuffer data, ByteBuffer valid) {
    ordered(slots);
    ordered(data);
    int row = 0;
    try {
      for (; row < count; row++) {
        Object found = (Object) read.invokeExact(held[slots.getInt(row << 2)]);
        valid.put(row, (byte) (found == null ? 0 : 1));
        write(data, row, found);
      }
    } catch (Throwable error) {
      return stopped(row, error);
    }
    return -1;
  }

  private static void write(ByteBuffer data, int row, Object value) {
    if (value instanceof Long number) {
      data.putLong(row << 3, number);
    } else if (value instanceof Double number) {
      data.putDouble(row << 3, number);
    } else if (value instanceof Integer number) {
      data.putInt(row << 2, number);
    } else if (value instanceof Float number) {
      data.putFloat(row << 2, number);
    } else if (value instanceof Short number) {
      data.putShort(row << 1, number);
    } else if (value instanceof Byte number) {
      data.put(row, number);
    } else if (value instanceof Boolean number) {
      data.put(row, (byte) (number ? 1 : 0));
    } else if (value != null) {
      throw new IllegalArgumentException(value.getClass() + " has no column");
    }
  }

  private int stopped(int row, Throwable error) {
    failure = error;
    return row;
  }

  // --- states that are not typed -------------------------------------------------------------------------------------

  /**
   * Returns an accumulator, serialized by Java. Classes that {@link #deserialized} would refuse are refused here, so that
   * no state is written that cannot be read.
   */
  public static byte[] serialized(Object accumulator) throws IOException {
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    try (ObjectOutputStream out = new Checked(bytes)) {
      out.writeObject(accumulator);
    }
    return bytes.toByteArray();
  }

  private static final class Checked extends ObjectOutputStream {
    private boolean refused;

    Checked(ByteArrayOutputStream bytes) throws IOException {
      super(bytes);
    }

    @Override
    protected void annotateClass(Class<?> found) throws IOException {
      // After a refusal the stream writes the exception itself.
      if (!refused && status(found) == ObjectInputFilter.Status.REJECTED) {
        refused = true;
        throw new InvalidClassException(
            found.getName(), "it is neither of the jar nor of java.lang, java.math, java.util or java.time");
      }
    }
  }

  /**
   * Returns an accumulator of serialized bytes, which must be trusted. Only classes of the jar, of java.lang and java.math,
   * and of the packages that begin with java.util and java.time are accepted.
   */
  public static Object deserialized(byte[] bytes, Class<?> type) throws IOException, ClassNotFoundException {
    try (ObjectInputStream in = new ObjectInputStream(new ByteArrayInputStream(bytes))) {
      in.setObjectInputFilter(info -> status(info.serialClass()));
      Object accumulator = in.readObject();
      if (!type.isInstance(accumulator)) {
        throw new InvalidClassException(accumulator == null ? "null" : accumulator.getClass().getName());
      }
      return accumulator;
    }
  }

  private static ObjectInputFilter.Status status(Class<?> found) {
    if (found == null) {
      return ObjectInputFilter.Status.UNDECIDED;
    }
    Class<?> item = found;
    while (item.isArray()) {
      item = item.getComponentType();
    }
    String inside = item.getPackageName() + ".";
    boolean known =
        item.isPrimitive()
            || item.getClassLoader() == Loops.class.getClassLoader().getParent()
            || List.of("java.lang.", "java.math.").contains(inside)
            || inside.startsWith("java.util.")
            || inside.startsWith("java.time.");
    return known ? ObjectInputFilter.Status.ALLOWED : ObjectInputFilter.Status.REJECTED;
  }
}
